from hypothesis import settings

settings.register_profile("engine", deadline=None, derandomize=True)
settings.load_profile("engine")
