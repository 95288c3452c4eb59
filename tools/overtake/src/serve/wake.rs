//! Waking a core's loop: from its own tasks, from other cores, from the thread that takes signals.

use atomic_waker::AtomicWaker;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Poll};

/// A bell with one listener. Ringing it while it rings costs no system call, and a ring is never lost.
#[derive(Default)]
pub(super) struct Bell {
    rung: AtomicBool,
    listener: AtomicWaker,
}

impl Bell {
    pub(super) fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            self.listener.wake();
        }
    }

    /// True where it was rung since the last time.
    pub(super) fn take(&self) -> bool {
        self.rung.swap(false, Ordering::AcqRel)
    }

    /// Ready where it was rung since the last time.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.take() {
            return Poll::Ready(());
        }
        self.listener.register(context.waker());
        // It may have been rung before the listener was there.
        if self.take() { Poll::Ready(()) } else { Poll::Pending }
    }

    pub(super) async fn wait(&self) {
        core::future::poll_fn(|context| self.poll(context)).await;
    }
}
