"""The paper: its settings by name, its experiments and published numbers, and its section 4."""

from hf_cyclical import lazy_names

# The public names of this room, by the module that is imported when one of them is first asked for.
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    choice="CHOSEN_NAME chosen",
    comparison="DENSE_SEED Comparison Values drop_checkpoints",
    experiments="EXPERIMENTS Experiment epochs_of",
    figures="plot_comparison",
    linear="Rate Recovery Simulation",
    linear_rows="LinearCell dependence_on_lambda index_line linear_table rate_record settled_line",
    presets="DEFAULT_PRESET PRESETS",
    recommendation="Facts Recommended most_dense new_head recommended",
    published="LINEAR_RECOVERY",
    result_table="table",
    results="Cell RESULTS_NAME Results Setting check_dense check_folder check_report claimed dense_losses load_results "
    "make_folder read_folder read_reports report_path save_results write_report",
)
