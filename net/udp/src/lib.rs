//! UDP sockets with segmentation offload, on glommio.
