// Reading one layer of a trace into float32, head by head: own chunk decoding against HDF5's own
// read and conversion of the same file, in the same run.
// The file is tests/data/small.h5 unless KVBENCH_BENCH_TRACE names another.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <string>

#include "trace/reader.hpp"

namespace kvbench {
namespace {

std::string path() {
  const char* given = std::getenv("KVBENCH_BENCH_TRACE");
  return given != nullptr ? given : KVBENCH_TEST_DATA_DIR "/small.h5";
}

void read(benchmark::State& state, TraceReader::Path how) {
  const TraceReader reader(path(), how);
  const LayerMeta& layer = reader.meta().prompts[0].layers[0];
  for (auto _ : state) {
    for (Index h = 0; h < layer.kv_heads; ++h) {
      benchmark::DoNotOptimize(reader.read_head(0, 0, h));
    }
  }
  const Index elements =
      layer.n * layer.kv_heads * (layer.d + layer.dv) + layer.nq * layer.q_heads * layer.d;
  state.SetBytesProcessed(state.iterations() * elements * bytes_per_element(reader.meta().dtype));
}

BENCHMARK_CAPTURE(read, own_decoding, TraceReader::Path::automatic)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(read, through_hdf5, TraceReader::Path::hdf5_only)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace kvbench
