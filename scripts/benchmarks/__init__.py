"""The measurements of scripts/benchmark.py, by subject."""
