// Internal to lib/trace: the rotary tables below /rope.
#pragma once

#include "core/rope.hpp"
#include "trace/hdf5_util.hpp"
#include "trace/schema.hpp"

namespace kvbench::h5 {

/// Checks /rope, where the file has it, and writes rope_positions, rope_dim and rope_path into
/// every layer that it gives tables for. Call after the prompts are read.
void read_rope_structure(hid_t file, const Place& root, TraceMeta& meta);

/// The tables of a layer whose rope_path is not empty. Refuses what is not finite, and a pair whose
/// cos and sin are both 0.
RopeTables read_rope_tables(hid_t file, const TraceMeta& meta, const LayerMeta& layer);

}  // namespace kvbench::h5
