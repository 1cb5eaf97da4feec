//! The engine of a ring in its lane: none, one that runs, or one that has ended and waits to be fetched.

/// The engine of a ring, and whether it runs.
#[derive(Default)]
pub(crate) enum EngineState<E> {
    /// Stopped, and whoever stopped it has the engine.
    #[default]
    None,
    /// The worker serves it.
    Running(Box<E>),
    /// Stopped by a fault or by its registers; kept until it is fetched, because it knows how far the ring has come.
    Ended(Box<E>),
}

impl<E> EngineState<E> {
    #[inline(always)]
    pub fn is_running(&self) -> bool {
        matches!(self, Self::Running(_))
    }

    pub fn has_ended(&self) -> bool {
        matches!(self, Self::Ended(_))
    }

    /// The engine, if it runs.
    #[inline(always)]
    pub fn running(&self) -> Option<&E> {
        match self {
            Self::Running(engine) => Some(engine),
            _ => None,
        }
    }

    /// The engine, if it runs.
    #[inline(always)]
    pub fn running_mut(&mut self) -> Option<&mut E> {
        match self {
            Self::Running(engine) => Some(engine),
            _ => None,
        }
    }

    /// The engine, running or not.
    pub fn any_mut(&mut self) -> Option<&mut E> {
        match self {
            Self::Running(engine) | Self::Ended(engine) => Some(engine),
            Self::None => None,
        }
    }

    /// Stops it and keeps it.
    pub fn end(&mut self) {
        *self = match core::mem::take(self) {
            Self::Running(engine) => Self::Ended(engine),
            other => other,
        };
    }

    /// Takes it out, running or not.
    pub fn take(&mut self) -> Option<Box<E>> {
        match core::mem::take(self) {
            Self::Running(engine) | Self::Ended(engine) => Some(engine),
            Self::None => None,
        }
    }
}
