// Elements of a trace to float32 and back: our conversion against Eigen's of the same 2^20 numbers.
#include <benchmark/benchmark.h>

#include <Eigen/Core>
#include <vector>

#include "core/float16.hpp"
#include "core/rng.hpp"

namespace kvbench {
namespace {

constexpr Index kCount = Index{1} << 20;

std::vector<float> numbers() {
  std::vector<float> out(kCount);
  const RngStream draws = Rng(1, HeadId{}, "bench").stream("numbers");
  for (Index i = 0; i < kCount; ++i) {
    out[i] = static_cast<float>(draws.normal(static_cast<std::uint64_t>(i)));
  }
  return out;
}

template <class Element>
using Elements = Eigen::Array<Element, Eigen::Dynamic, 1>;

using Widen = void (*)(const std::uint16_t*, float*, Index);
using Narrow = void (*)(const float*, std::uint16_t*, Index);

void widen(benchmark::State& state, Widen convert, Narrow prepare) {
  std::vector<std::uint16_t> in(kCount);
  std::vector<float> out(kCount);
  prepare(numbers().data(), in.data(), kCount);
  for (auto _ : state) {
    convert(in.data(), out.data(), kCount);
    benchmark::ClobberMemory();
  }
}

void narrow(benchmark::State& state, Narrow convert) {
  const std::vector<float> in = numbers();
  std::vector<std::uint16_t> out(kCount);
  for (auto _ : state) {
    convert(in.data(), out.data(), kCount);
    benchmark::ClobberMemory();
  }
}

template <class Element>
void eigen_widen(const std::uint16_t* in, float* out, Index count) {
  const auto* elements = reinterpret_cast<const Element*>(in);
  Eigen::Map<Eigen::ArrayXf>(out, count) =
      Eigen::Map<const Elements<Element>>(elements, count).template cast<float>();
}

template <class Element>
void eigen_narrow(const float* in, std::uint16_t* out, Index count) {
  Eigen::Map<Elements<Element>>(reinterpret_cast<Element*>(out), count) =
      Eigen::Map<const Eigen::ArrayXf>(in, count).template cast<Element>();
}

BENCHMARK_CAPTURE(widen, half, half_to_float, float_to_half);
BENCHMARK_CAPTURE(widen, half_by_eigen, eigen_widen<Eigen::half>, float_to_half);
BENCHMARK_CAPTURE(widen, bfloat16, bfloat16_to_float, float_to_bfloat16);
BENCHMARK_CAPTURE(widen, bfloat16_by_eigen, eigen_widen<Eigen::bfloat16>, float_to_bfloat16);
BENCHMARK_CAPTURE(narrow, half, float_to_half);
BENCHMARK_CAPTURE(narrow, half_by_eigen, eigen_narrow<Eigen::half>);
BENCHMARK_CAPTURE(narrow, bfloat16, float_to_bfloat16);
BENCHMARK_CAPTURE(narrow, bfloat16_by_eigen, eigen_narrow<Eigen::bfloat16>);

}  // namespace
}  // namespace kvbench
