// The kinds of HDF5 files that kvbench writes, for whoever is about to replace one.
#pragma once

#include "core/output_guard.hpp"

namespace kvbench {

/// A trace that synth() wrote. One of a model is none: hours of work may be in it.
FileKind synthetic_trace_kind();
FileKind caches_kind();
FileKind points_kind();

}  // namespace kvbench
