"""Masks: who may attend to whom, as a frozen algebra over token order."""

from __future__ import annotations

from weft.masks.base import And, Mask, Not, Or
from weft.masks.basic import (
           Bidirectional,
           Causal,
           Dilated,
           Documents,
           Globals,
           Padding,
           Prefix,
           SameType,
           Segments,
           SymmetricWindow,
           Window,
)
from weft.masks.expression import MaskField, PerHead, known_masks, parse_mask, register_mask
from weft.masks.sparse import Block, Fixed, GlobalTokens, Reach, Strided, as_image, reach
from weft.masks.terms import Band, Key, Lookahead, Pattern, Query

__all__ = ["And", "Band", "Bidirectional", "Block", "Causal", "Dilated", "Documents", "Fixed", "GlobalTokens",
           "Globals", "Key", "Lookahead", "Mask", "MaskField", "Not", "Or", "Padding", "Pattern", "PerHead", "Prefix",
           "Query", "Reach", "SameType", "Segments", "Strided", "SymmetricWindow", "Window", "as_image", "known_masks",
           "parse_mask", "reach", "register_mask"]
