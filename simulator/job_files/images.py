"""Images that a job of Hugging Face's trainers trains on, as ``[workload.images]``.

Switches, names and defaults are those of LLaMA-Factory (0.9) and ms-swift (3.11), in their dialects. How many images a
sample has, and of which sizes, is in the data: one of as many pixels as may be is taken, where the job sets what is
frozen or how large images are.
"""

from __future__ import annotations

from math import isqrt

from joulecast.simulator.job_files.asked import Asked
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.settings_file import SettingsFile
from joulecast.simulator.plan_file.images import KEY, USUAL_SIDE

TOWER, PROJECTOR, TEXT = "freeze_vision_tower", "freeze_multi_modal_projector", "freeze_language_model"
PIXELS = "image_max_pixels"


def read_images(config: SettingsFile, draft: Draft, asked: Asked, *, adapted: bool) -> None:
    """Put images into the plan of a model that sees them, where the job says anything of them.

    Raises
    ------
    InputError
        The text model is frozen.
    """
    said = [key for key in (TOWER, PROJECTOR, TEXT, PIXELS) if config.given(key)]
    config.know((TOWER, PROJECTOR, TEXT, PIXELS))
    if "workload.model" not in draft.settings:
        return
    vision = draft.model(asked).vision
    if vision is None:
        return
    if not said:
        draft.warn(
            f"the model sees images, of which the job says nothing: its text is forecast alone. With images, add --set "
            f"{KEY}.per_sequence=1 or more"
        )
        return
    if config.on(TEXT):
        what = "a text model that is frozen beside a trained tower or projector is not known"
        raise config.error(what, TEXT, "Set it to false to forecast the job without it.")
    draft.put(f"{KEY}.per_sequence", 1, "one of each sample, which its data say")
    if not vision.image_size:
        side, source = isqrt(config.whole(PIXELS) or USUAL_SIDE**2), config.source(PIXELS)
        draft.put(f"{KEY}.height", side, *source)
        draft.put(f"{KEY}.width", side, *source)
    if not adapted:
        for key in (TOWER, PROJECTOR):
            draft.put(f"{KEY}.{key}", config.value(key, bool, False), *config.source(key))
    draft.warn(
        f"a sample is taken to have one image, as large as may be: its data say how many, add --set "
        f"{KEY}.per_sequence=… if there are more, and {KEY}.height and width if they are smaller"
    )
