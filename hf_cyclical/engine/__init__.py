"""Running a sparse model fast on a CPU."""
