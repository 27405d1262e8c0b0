"""fsgmm."""
