"""Operations and their forms."""

from weft.ops.processor import bound_onednn_caches

bound_onednn_caches()  # here, since every model imports this package before its first product
