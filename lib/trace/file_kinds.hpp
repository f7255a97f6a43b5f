// The kinds of HDF5 files that kvbench writes and may therefore replace.
#pragma once

#include "core/output_guard.hpp"

namespace kvbench {

/// A trace that synth() wrote. A trace of a model may have taken hours and is never replaced.
FileKind synthetic_trace_kind();
FileKind caches_kind();

}  // namespace kvbench
