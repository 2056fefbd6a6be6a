"""The fixed codec between 64 x 64 pixels and 16 x 16 latents of the embedded text-to-image model."""

from dataclasses import dataclass

import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.autoencoders.vae import DecoderOutput
from diffusers.models.modeling_utils import ModelMixin


@dataclass(frozen=True)
class PatchLatents:
    """What `encode` returns: the same words as diffusers' AutoencoderKL, without a distribution."""

    latents: torch.Tensor  # (N, C, H / p, W / p)

    @property
    def latent_dist(self) -> "PatchLatents":
        return self

    def sample(self, generator: torch.Generator | None = None) -> torch.Tensor:
        return self.latents

    def mode(self) -> torch.Tensor:
        return self.latents


class PatchCodec(ModelMixin, ConfigMixin):
    """Principal components of 4 x 4 pixel patches: (N, 3, H, W) in [-1, 1] <-> (N, 12, H/4, W/4).

    Linear and fixed, so it needs no training and loses little (its error is in the manifest); it stands
    where a Stable Diffusion pipeline expects its VAE (Rombach 2022, §3.1). Components are divided by
    sd^0.6, which evens their variances without blowing up those that hold little.
    """

    config_name = "config.json"

    @register_to_config
    def __init__(
        self,
        in_channels: int = 3,
        out_channels: int = 3,
        latent_channels: int = 12,
        patch_size: int = 4,
        scaling_factor: float = 1.0,
        block_out_channels: tuple[int, ...] = (12, 12, 12),  # length 3: pipelines read 2 ** (3 - 1) = 4 from it
        sample_size: int = 64,
    ) -> None:
        super().__init__()
        width = in_channels * patch_size**2
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("to_latent", torch.eye(latent_channels, width))  # (C, 48), scaled rows
        self.register_buffer("to_patch", torch.eye(width, latent_channels))  # (48, C), its pseudo-inverse

    @property
    def device(self) -> torch.device:
        return self.mean.device  # type: ignore[no-any-return, union-attr]

    @property
    def dtype(self) -> torch.dtype:
        return self.mean.dtype  # type: ignore[no-any-return, union-attr]

    def encode(self, x: torch.Tensor, return_dict: bool = True) -> PatchLatents | tuple[PatchLatents]:
        """(N, 3, H, W) in [-1, 1] -> latents (N, 12, H/4, W/4)."""
        patches = torch.nn.functional.pixel_unshuffle(x, self.config.patch_size)  # (N, 48, H/4, W/4)
        latents = torch.einsum("cp,nphw->nchw", self.to_latent, patches - self.mean[:, None, None])
        encoded = PatchLatents(latents)
        return encoded if return_dict else (encoded,)

    def decode(
        self, z: torch.Tensor, return_dict: bool = True, generator: torch.Generator | None = None
    ) -> DecoderOutput | tuple[torch.Tensor]:
        """Latents (N, 12, h, w) -> (N, 3, 4h, 4w), about [-1, 1] (not clipped)."""
        patches = torch.einsum("pc,nchw->nphw", self.to_patch, z) + self.mean[:, None, None]
        pixels = torch.nn.functional.pixel_shuffle(patches, self.config.patch_size)
        return DecoderOutput(sample=pixels) if return_dict else (pixels,)

    def fit(self, images: torch.Tensor, exponent: float = 0.6) -> float:
        """Sets the components from (N, 3, H, W) images in [-1, 1]; returns the mean squared error on them."""
        patches = torch.nn.functional.pixel_unshuffle(images, self.config.patch_size)
        rows = patches.permute(0, 2, 3, 1).reshape(-1, patches.shape[1]).double()  # (N·H·W/16, 48)
        mean = rows.mean(0)
        values, vectors = torch.linalg.eigh(torch.cov((rows - mean).T))
        kept = values.argsort(descending=True)[: self.config.latent_channels]
        scale = values[kept].clamp_min(1e-8).sqrt() ** -exponent  # (C,)
        components = vectors[:, kept].T  # (C, 48)
        self.mean.copy_(mean)
        self.to_latent.copy_(components * scale[:, None])
        self.to_patch.copy_((components / scale[:, None]).T)
        encoded = self.encode(images)
        assert isinstance(encoded, PatchLatents)
        decoded = self.decode(encoded.latents)
        assert isinstance(decoded, DecoderOutput)
        return float(((decoded.sample - images) ** 2).mean())
