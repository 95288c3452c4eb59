//! Carries disk operations to io_uring on glommio.
