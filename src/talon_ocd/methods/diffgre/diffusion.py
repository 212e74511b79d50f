"""DiffGRE's attribute composition with a latent diffusion model (layer: methods; section 3.10, step 1).

Two pictures are interpolated spherically in three spaces, with a λ each: text embedding, image embedding (where the
denoiser takes one) and latent. The latent is noised, denoised under the interpolated conditions, and decoded. Models
have the folder layout of diffusers, which is asked for at the first use only: ``pip install 'talon-ocd[diffusion]'``.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from talon_ocd.errors import BackboneError, ConfigError
from talon_ocd.methods.diffgre.generate import Parent

Captioner = Callable[[Image.Image, str], str]
"""``(picture, class name) -> caption``."""
NEARLY_PARALLEL = 1e-4
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def name_caption(picture: Image.Image, name: str) -> str:
    """Return a caption that knows the class only.

    >>> name_caption(Image.new("RGB", (1, 1)), "black_footed_albatross")
    'a photo of a black footed albatross'
    """
    return f"a photo of a {name.replace('_', ' ')}"


def slerp(first: Tensor, second: Tensor, share: float) -> Tensor:
    """Return points on the arc from ``first`` to ``second``, both ``(..., D)``, ``share`` of the way.

    ``sin((1-λ)ω) / sin ω · z_1 + sin(λω) / sin ω · z_2`` with ω the angle between them. Lengths go along; vectors that
    are (anti)parallel have no arc, and are interpolated straight.
    """
    cosine = torch.nn.functional.cosine_similarity(first, second, dim=-1).clamp(-1.0, 1.0)[..., None]
    angle = cosine.arccos()
    straight = angle.sin() < NEARLY_PARALLEL
    sine = angle.sin().masked_fill(straight, 1.0)
    before = torch.where(straight, torch.full_like(sine, 1.0 - share), ((1.0 - share) * angle).sin() / sine)
    after = torch.where(straight, torch.full_like(sine, share), (share * angle).sin() / sine)
    return before * first + after * second


@dataclass(frozen=True)
class CompositionSettings:
    """How two pictures become one; the paper's values are not known."""

    lambda_text: float = 0.5
    lambda_image: float = 0.5
    lambda_latent: float = 0.5
    strength: float = 0.75
    """Share of the noising that the latent goes through: 1 forgets it."""
    steps: int = 50
    """Denoising steps (DDIM) of a whole schedule."""
    guidance: float = 7.5
    """Weight of the condition (classifier-free guidance); 1 is none."""
    size: int | None = None
    """Pixels a side; ``None`` is the model's own."""

    def __post_init__(self) -> None:
        for name in ("lambda_text", "lambda_image", "lambda_latent"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name}={getattr(self, name)}: it is a share; use 0 (first parent) to 1 (second).")
        if not 0.0 < self.strength <= 1.0 or self.steps < 1:
            raise ConfigError(f"strength={self.strength}, steps={self.steps}: use above 0 to 1, and 1 step or more.")


@dataclass(frozen=True)
class DiffusionParts:
    """The networks of a latent diffusion model; ``image_encoder`` may be missing."""

    vae: Any
    unet: Any
    scheduler: Any
    text_encoder: Any
    tokenizer: Any
    image_encoder: Any = None


class DiffusionGenerator:
    """Composes pictures with a latent diffusion model.

    Attributes:
        uses_images: whether the denoiser takes image embeddings, so that ``lambda_image`` matters: there is an image
            encoder, and an IP-Adapter has been loaded into the denoiser.
    """

    def __init__(
        self,
        parts: DiffusionParts,
        settings: CompositionSettings = CompositionSettings(),  # noqa: B008 - frozen
        captioner: Captioner = name_caption,
        name: str = "",
    ) -> None:
        self._parts, self._settings, self._captioner, self._name = parts, settings, captioner, name
        kind = getattr(parts.unet.config, "encoder_hid_dim_type", None)
        self.uses_images = parts.image_encoder is not None and kind == "ip_image_proj"
        grid = parts.unet.config.sample_size
        factor = 2 ** (len(parts.vae.config.block_out_channels) - 1)
        self._size = settings.size or (grid if isinstance(grid, int) else max(grid)) * factor
        if self._size % factor:
            raise ConfigError(f"size={self._size}: this model needs a multiple of {factor}.")
        self._device = next(parts.unet.parameters()).device

    def settings(self) -> dict[str, Any]:
        """Return model and settings."""
        return {"generator": "diffusion", "model": self._name, **asdict(self._settings)}

    @torch.no_grad()
    def compose(self, first: Parent, second: Parent, seed: int) -> Image.Image:
        """Interpolate, noise, denoise, decode."""
        settings, pair = self._settings, (first, second)
        captions = [self._captioner(parent.picture, parent.label) for parent in pair]
        text = _between(self._embed_text(captions), settings.lambda_text)
        pictures = [ImageOps.fit(parent.picture, (self._size, self._size)) for parent in pair]
        latents = self._encode(pictures)
        latent = _between(latents.flatten(1), settings.lambda_latent).view_as(latents[0])
        image = _between(self._embed_images(pictures), settings.lambda_image) if self.uses_images else None
        return self._decode(self._denoise(latent[None], text[None], image, seed))

    def _denoise(self, latent: Tensor, text: Tensor, image: Tensor | None, seed: int) -> Tensor:
        """Noise a latent ``(1, c, h, w)`` and follow DDIM back, under text ``(1, T, E)`` and image ``(E')``."""
        settings, scheduler = self._settings, self._parts.scheduler
        scheduler.set_timesteps(settings.steps, device=self._device)
        times = scheduler.timesteps[settings.steps - max(round(settings.steps * settings.strength), 1) :]
        noise = torch.randn(latent.shape, generator=torch.Generator().manual_seed(seed)).to(latent)
        latent = scheduler.add_noise(latent, noise, times[:1])
        guided = settings.guidance != 1.0
        if guided:
            text = torch.cat([self._embed_text([""]), text])
        added = self._image_condition(image, guided)
        for time in times:
            seen = scheduler.scale_model_input(latent.repeat(len(text), 1, 1, 1), time)
            noise = self._parts.unet(seen, time, encoder_hidden_states=text, **added).sample
            if guided:
                without, within = noise.chunk(2)
                noise = without + settings.guidance * (within - without)
            latent = scheduler.step(noise, time, latent).prev_sample
        return latent

    def _image_condition(self, image: Tensor | None, guided: bool) -> dict[str, Any]:
        """Return an image embedding ``(E',)`` as an IP-Adapter takes it; guidance compares with a zero."""
        if image is None:
            return {}
        embeds = torch.stack([torch.zeros_like(image), image] if guided else [image])
        return {"added_cond_kwargs": {"image_embeds": [embeds[:, None]]}}

    def _embed_text(self, captions: list[str]) -> Tensor:
        tokenizer = self._parts.tokenizer
        tokens = tokenizer(
            captions, padding="max_length", max_length=tokenizer.model_max_length, truncation=True, return_tensors="pt"
        )
        embedded: Tensor = self._parts.text_encoder(tokens.input_ids.to(self._device))[0]
        return embedded

    def _embed_images(self, pictures: list[Image.Image]) -> Tensor:
        side = self._parts.image_encoder.config.image_size
        pixels = torch.stack([_pixels(picture.resize((side, side), Image.Resampling.BICUBIC)) for picture in pictures])
        mean, std = (torch.tensor(values)[:, None, None] for values in (CLIP_MEAN, CLIP_STD))
        embedded: Tensor = self._parts.image_encoder(((pixels - mean) / std).to(self._device)).image_embeds
        return embedded

    def _encode(self, pictures: list[Image.Image]) -> Tensor:
        pixels = torch.stack([_pixels(picture) for picture in pictures]).to(self._device) * 2.0 - 1.0
        latents: Tensor = self._parts.vae.encode(pixels).latent_dist.mode() * self._parts.vae.config.scaling_factor
        return latents

    def _decode(self, latent: Tensor) -> Image.Image:
        pixels = self._parts.vae.decode(latent / self._parts.vae.config.scaling_factor).sample[0]
        scaled = ((pixels / 2.0 + 0.5).clamp(0.0, 1.0) * 255.0).round().byte()
        return Image.fromarray(scaled.permute(1, 2, 0).cpu().numpy())


def load_parts(model: str, device: str = "cpu") -> DiffusionParts:
    """Load ``vae``, ``unet``, ``scheduler``, ``text_encoder`` and ``tokenizer`` from a folder or the hub."""
    diffusers, transformers = import_diffusers()

    def load(kind: Any, part: str) -> Any:
        return kind.from_pretrained(model, subfolder=part)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            networks = {
                "vae": load(diffusers.AutoencoderKL, "vae"),
                "unet": load(diffusers.UNet2DConditionModel, "unet"),
                "text_encoder": load(transformers.CLIPTextModel, "text_encoder"),
            }
            scheduler = diffusers.DDIMScheduler.from_pretrained(model, subfolder="scheduler", clip_sample=False)
            tokenizer = load(transformers.CLIPTokenizer, "tokenizer")
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            raise BackboneError(
                f"{model}: no latent diffusion model can be loaded. Reason: {reason} Give a folder or a hub id in "
                "diffusers' layout, such as that of Stable Diffusion 1 or 2."
            ) from error
    ready = {name: network.to(device).eval().requires_grad_(False) for name, network in networks.items()}
    return DiffusionParts(scheduler=scheduler, tokenizer=tokenizer, **ready)


def import_diffusers() -> tuple[Any, Any]:
    """Return diffusers and transformers, imported at the first use only."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            diffusers, transformers = (importlib.import_module(name) for name in ("diffusers", "transformers"))
    except ImportError as error:
        raise BackboneError(
            f"generating pictures needs diffusers and transformers ({error}): pip install 'talon-ocd[diffusion]'. "
            "Without them, DiffGRE mixes labelled images or takes a folder of pictures that were made elsewhere."
        ) from error
    for package in (diffusers, transformers):
        package.utils.logging.set_verbosity_error()
        package.utils.logging.disable_progress_bar()
    return diffusers, transformers


def _between(pair: Tensor, share: float) -> Tensor:
    """Return what lies between the two rows of ``(2, ..., D)``."""
    return slerp(pair[0], pair[1], share)


def _pixels(picture: Image.Image) -> Tensor:
    """Return a picture as ``(3, H, W)`` between 0 and 1."""
    return torch.from_numpy(np.asarray(picture.convert("RGB"), np.float32) / 255.0).permute(2, 0, 1)
