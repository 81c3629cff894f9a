"""What a run tells: the report, how it is read, its tables and figures."""

from hf_cyclical import lazy_names

# The public names of this room, by the module that is imported when one of them is first asked for.
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    collect="classifier layer_reports new_report row_report zeros",
    drawing="NothingToDrawError name_metric new_figure save",
    figures="FIGURE_NAME draw_recovery draw_regrown draw_run drawn_in_percent last_update plot_layers plot_recovery "
    "plot_regrown plot_run",
    layer_figure="draw_layers",
    read="read_finished read_whole whole_report",
    report="CycleReport LayerReport PruningReport REPORT_NAME final_metrics finite load_report versions",
    tables="align in_percent is_rate show table_of",
)
