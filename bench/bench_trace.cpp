// Reading one layer of a trace into float32, head by head: own chunk decoding against HDF5's own
// read and conversion of the same file, in the same run. And opening a trace.
// The file is tests/data/small.h5 unless KVBENCH_BENCH_TRACE names another.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <string>

#include "hdf5_values.hpp"
#include "trace/reader.hpp"

namespace kvbench {
namespace {

std::string path() {
  const char* given = std::getenv("KVBENCH_BENCH_TRACE");
  return given != nullptr ? given : KVBENCH_TEST_DATA_DIR "/small.h5";
}

Index layer_bytes(const TraceMeta& meta) {
  const LayerMeta& layer = meta.prompts[0].layers[0];
  const Index elements =
      layer.n * layer.kv_heads * (layer.d + layer.dv) + layer.nq * layer.q_heads * layer.d;
  return elements * bytes_per_element(meta.dtype);
}

void own_decoding(benchmark::State& state) {
  const TraceReader reader(path());
  const LayerMeta& layer = reader.meta().prompts[0].layers[0];
  for (auto _ : state) {
    for (Index h = 0; h < layer.kv_heads; ++h) {
      benchmark::DoNotOptimize(reader.read_head(0, 0, h));
    }
  }
  state.SetBytesProcessed(state.iterations() * layer_bytes(reader.meta()));
}

void through_hdf5(benchmark::State& state) {
  const TraceMeta meta = TraceReader(path()).meta();
  const LayerMeta& layer = meta.prompts[0].layers[0];
  const std::string at =
      "/prompts/" + meta.prompts[0].id + "/layers/" + std::to_string(layer.layer) + "/";
  for (auto _ : state) {
    for (Index h = 0; h < layer.q_heads; ++h) {
      benchmark::DoNotOptimize(
          testing_traces::hdf5_head(path(), at + "q", meta.dtype, h, layer.nq, layer.d));
    }
    for (Index h = 0; h < layer.kv_heads; ++h) {
      benchmark::DoNotOptimize(
          testing_traces::hdf5_head(path(), at + "k", meta.dtype, h, layer.n, layer.d));
      benchmark::DoNotOptimize(
          testing_traces::hdf5_head(path(), at + "v", meta.dtype, h, layer.n, layer.dv));
    }
  }
  state.SetBytesProcessed(state.iterations() * layer_bytes(meta));
}

void opening(benchmark::State& state) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(TraceReader(path()));
  }
}

BENCHMARK(own_decoding)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(through_hdf5)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(opening)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace kvbench
