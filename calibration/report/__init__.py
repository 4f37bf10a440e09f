"""One page of pictures that shows what an evaluation found."""
