"""Work on a graphics card that is started as a whole: steps of decoding as CUDA graphs, and numbers on their way from
the card to the host."""
