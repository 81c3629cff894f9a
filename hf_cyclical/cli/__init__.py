"""The commands of `hf-cyclical`."""
