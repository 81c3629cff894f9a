"""Bytes on disk: atomic writes, model folders, sparsity records, packed weights, redaction."""

from hf_cyclical import lazy_names

# The public names of this room, by the module that is imported when one of them is first asked for.
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    atomic="leads_elsewhere replacing write_text writing",
    codec="MAX_BYTES decode encode packable refuse_large",
    extras="optional",
    model_folder="CONFIG PREFIX PROCESSORS WEIGHTS WEIGHTS_INDEX check_weights damaged_weights read_json "
    "say_classes_once wrapper_arguments",
    packed_files="Kind PackedSummary describe_weights header_metadata is_packed iterate_packed iterate_tensors "
    "pack_file packed_names read_kinds read_packed unpack_file",
    packed_folders="MAX_CONFIG_BYTES QUANTIZATION_CONFIG QUANTIZATION_KEY QUANTIZATION_METHOD pack_folder read_config "
    "unpack_folder",
    png_text="without_text",
    record_schema="KEY MAX_METADATA_BYTES METADATA_NAME SCHEMA parse_json parse_metadata read_metadata root_hash "
    "totals",
    redaction="TOKEN hide_in_command hide_in_header hide_in_settings hide_paths last_part public_about without_secrets",
    tensor_files="plus_zeros write_tensors",
    tasks="CLASSIFICATION DETECTION SEGMENTATION TASKS Task task_of",
)
