"""Pushing to the Hub: the folder that is pushed, its card and record, and the verification of both."""

from hf_cyclical import lazy_names

# The public names of this room, by the module that is imported when one of them is first asked for.
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    card="render_card",
    compilation="compile",
    errors="LOGIN",
    folder="build_folder",
    measured_speed="SPEED_NAME read_speed record_speed",
    multiply_adds="MultiplyAdds count_multiply_adds",
    push_settings="MAIN refuse_settings",
    record="build_metadata count_weights mask_hash public_id short_form stamp",
    self_description="describe",
    upload="create_repository push push_command",
    verification="Verification verify",
)
