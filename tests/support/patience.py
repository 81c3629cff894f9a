"""How long tests wait for what should end by itself."""

HUNG = 1800  # seconds after which a process is taken for hung: no test asks how fast a machine is
