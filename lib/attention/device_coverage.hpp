// Facility location on a machine: the launches around coverage_kernels.hpp.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "attention/coverage_kernels.hpp"
#include "attention/device.hpp"
#include "core/machine.hpp"

namespace kvbench {

/// Gains over the unit keys of one FacilityLocation, which are copied into the machine's memory:
/// 8 n d bytes, beside O(n) and, for the candidates of a batch, 8 * 256 d. The machine must outlive
/// it. Results equal FacilityLocation's.
template <class M>
class CoverageOn final : public DeviceCoverage {
 public:
  CoverageOn(M& machine, const UnitKeys& units, Index n, Similarity kind)
      : machine_(machine),
        n_(n),
        units_(machine, units.padded() * units.d()),
        offsets_(machine, units.padded()),
        best_(machine, units.padded()),
        sums_(machine, std::max(n, kBatch)),
        candidates_(machine, kBatch),
        candidate_units_(machine, kBatch * units.d()),
        candidate_offsets_(machine, kBatch) {
    upload(units);
    ground_ = {units_.data(), offsets_.data(), units.blocks(), units.d(), kind};
    best_.zero();
  }

  std::vector<std::int64_t> singletons() override {
    std::vector<std::int64_t> out(static_cast<std::size_t>(n_));
    if (n_ == 0) {
      return out;
    }
    const Gains kernel{ground_, units_.data(), offsets_.data(), n_, nullptr, true, sums_.data()};
    sums_.zero();
    machine_.launch(kernel, kernel.launch_blocks());
    sums_.get(out);
    return out;
  }

  void gains(std::span<const Index> candidates, std::span<std::int64_t> out) override {
    const auto step = static_cast<std::size_t>(kBatch);
    for (std::size_t i = 0; i < candidates.size(); i += step) {
      const std::size_t count = std::min(step, candidates.size() - i);
      candidates_.put(candidates.subspan(i, count));
      const GatherUnits gather{ground_, candidates_.data(), static_cast<Index>(count),
                               candidate_units_.data(), candidate_offsets_.data()};
      machine_.launch(gather, gather.launch_blocks());
      machine_.fill_zero(sums_.data(), count * sizeof(std::int64_t));
      const Gains kernel{ground_,
                         candidate_units_.data(),
                         candidate_offsets_.data(),
                         static_cast<Index>(count),
                         best_.data(),
                         false,
                         sums_.data()};
      machine_.launch(kernel, kernel.launch_blocks());
      sums_.get(out.subspan(i, count));
    }
  }

  std::int64_t add(Index u) override {
    std::int64_t gain = 0;
    machine_.fill_zero(sums_.data(), sizeof gain);
    const AddKey kernel{ground_, u, best_.data(), sums_.data()};
    machine_.launch(kernel, kernel.launch_blocks());
    sums_.get(std::span(&gain, 1));
    return gain;
  }

 private:
  static constexpr Index kBatch = FacilityLocation::kDeviceBatch;
  static_assert(kBatch % UnitKeys::kBlock == 0);

  void upload(const UnitKeys& units) {
    const Index block = units.d() * UnitKeys::kBlock;
    for (Index b = 0; b < units.blocks(); ++b) {
      machine_.copy_in(units_.data() + b * block, units.block(b).data(),
                       static_cast<std::size_t>(block) * sizeof(double));
    }
    std::vector<double> offsets;
    for (Index i = 0; i < units.padded(); ++i) {
      offsets.push_back(units.is_zero(i) ? 0.0 : 0.5);
    }
    offsets_.put(offsets);
  }

  M& machine_;
  Index n_;
  Array<double, M> units_;
  Array<double, M> offsets_;
  Array<std::int32_t, M> best_;
  Array<std::int64_t, M> sums_;  // what a kernel returns
  Array<Index, M> candidates_;
  Array<double, M> candidate_units_, candidate_offsets_;
  CoverageGround ground_{};
};

}  // namespace kvbench
