"""Image models: found by name or folder, trusted or not, and loaded."""

from hf_cyclical import lazy_names

# The public names of this room, by the module that is imported when one of them is first asked for.
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    download="broke_on_the_way downloading find_all_files find_files is_of_the_hub",
    finding="check_image_model",
    fitting="plan_model",
    image_model="ImageModel load_image_model",
    image_settings="ImageSettings load_image_processor processor_settings",
    load_untrusted="load load_packed_model unpack_folder",
    portable="make_portable",
    saved_images="class_names image_processor image_side pixels_of",
    timm_loading="changed_by_timm",
    untrusted_config="is_of_timm",
)
