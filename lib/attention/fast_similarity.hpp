// Nearest keys and facility location by tensor cores: most_similar_on() and CoverageOn but for
// accuracy, around fast_similar_kernels.hpp.
//
// A cosine is a sum of products of halves (core/tile_product.hpp): off by some 3 2^-22 at most
// where keys are float32 or divided by their norm, and by some 2^-23 sqrt(d / 16) as it is summed;
// below 1e-6 in all. So nearest keys differ from the exact ones only where two cosines are as
// close, and a similarity by some 1e3 of its units of 2^-30. Gains are exact sums of these
// similarities, which singletons(), gains() and add() make alike: bounds on gains hold to the last
// bit here too.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "attention/dense_block.hpp"
#include "attention/device.hpp"
#include "attention/device_tensors.hpp"
#include "attention/fast_similar_kernels.hpp"
#include "attention/most_similar.hpp"
#include "core/machine.hpp"

namespace kvbench {

/// most_similar_on() by tensor cores; `keys`: how the head's keys are scaled. Memory beside the
/// head: halves of the keys of `to`, and of those of `from` within scratch_bytes(), but at least
/// 128.
template <class M>
std::vector<Index> most_similar_fast(M& machine, const HeadTensors<M>& head, HalfScale keys,
                                     std::span<const Index> to, std::span<const Index> from) {
  std::vector<Index> out(from.size());
  if (from.empty()) {
    return out;
  }
  const Index d = head.head->d();
  const auto columns = static_cast<Index>(to.size());
  const std::vector<double> norms = inverse_norms(head.head->k, to);
  // Times a power of two: the inverse of a norm that float32 holds need not be one.
  double most = 0.0;
  for (const double x : norms) {
    most = std::max(most, x);
  }
  const double unit = most > 0.0 ? std::ldexp(1.0, -std::ilogb(most)) : 1.0;
  std::vector<float> narrow;
  narrow.reserve(norms.size());
  for (const double x : norms) {
    narrow.push_back(static_cast<float>(x * unit));
  }
  const Array<Index, M> to_rows(machine, to);
  const Array<float, M> inverse(machine, std::span<const float>(narrow));
  fast::Packed<M> right(machine, columns, d, keys);
  right.pack(machine, head.k.data(), to_rows.data(), columns);

  const Index room = dense::fitting(machine, d * static_cast<Index>(sizeof(float)), fast::kRowUnit);
  const Index most_rows = std::min(static_cast<Index>(from.size()), std::max(fast::kRowUnit, room));
  fast::Packed<M> left(machine, most_rows, d, keys);
  Array<Index, M> from_rows(machine, most_rows);
  const Array<Index, M> place(machine, most_rows);
  for (std::size_t r = 0; r < from.size(); r += static_cast<std::size_t>(most_rows)) {
    const std::size_t rows = std::min(static_cast<std::size_t>(most_rows), from.size() - r);
    from_rows.put(from.subspan(r, rows));
    left.pack(machine, head.k.data(), from_rows.data(), static_cast<Index>(rows));
    dense::launch(machine, fast::NearestRows{{},
                                             left.view(),
                                             right.view(),
                                             inverse.data(),
                                             static_cast<Index>(rows),
                                             columns,
                                             place.data()});
    place.get(std::span(out).subspan(r, rows));
  }
  return out;
}

/// CoverageOn by tensor cores: 4 n d bytes of unit keys. The machine must outlive it.
template <class M>
class FastCoverageOn final : public DeviceCoverage {
 public:
  FastCoverageOn(M& machine, const UnitKeys& units, Index n, Similarity kind)
      : machine_(machine),
        n_(n),
        units_(machine, units.padded(), units.d(), fast::kUnitScale),
        offsets_(machine, units.padded()),
        best_(machine, units.padded()),
        sums_(machine, std::max(n, kBatch)),
        candidates_(machine, kBatch),
        candidate_units_(machine, kBatch, units.d(), fast::kUnitScale),
        candidate_offsets_(machine, fast::padded_rows(kBatch)) {
    upload(units);
    ground_ = {units_.view(), offsets_.data(), n, kind};
    best_.zero();
  }

  std::vector<std::int64_t> singletons() override {
    std::vector<std::int64_t> out(static_cast<std::size_t>(n_));
    sums_.zero();
    dense::launch(
        machine_,
        fast::SplitGains{{}, ground_, units_.view(), offsets_.data(), n_, nullptr, sums_.data()});
    sums_.get(out);
    return out;
  }

  void gains(std::span<const Index> candidates, std::span<std::int64_t> out) override {
    const auto step = static_cast<std::size_t>(kBatch);
    for (std::size_t i = 0; i < candidates.size(); i += step) {
      const std::size_t count = std::min(step, candidates.size() - i);
      gather(candidates.subspan(i, count));
      machine_.fill_zero(sums_.data(), count * sizeof(std::int64_t));
      dense::launch(machine_, fast::SplitGains{{},
                                               ground_,
                                               candidate_units_.view(),
                                               candidate_offsets_.data(),
                                               static_cast<Index>(count),
                                               best_.data(),
                                               sums_.data()});
      sums_.get(out.subspan(i, count));
    }
  }

  std::int64_t add(Index u) override {
    std::int64_t gain = 0;
    gather(std::span(&u, 1));
    machine_.fill_zero(sums_.data(), sizeof gain);
    dense::launch(machine_, fast::SplitAdd{ground_, candidate_units_.view(),
                                           candidate_offsets_.data(), best_.data(), sums_.data()});
    sums_.get(std::span(&gain, 1));
    return gain;
  }

 private:
  static constexpr Index kBatch = FacilityLocation::kDeviceBatch;
  // As an operand, blocks of UnitKeys follow each other without a gap.
  static_assert(UnitKeys::kBlock % fast::kRowUnit == 0 && kBatch % fast::kRowUnit == 0);

  // Some blocks of float64 at a time: the machine keeps their halves alone.
  void upload(const UnitKeys& units) {
    const Index d = units.d();
    const Index block = d * UnitKeys::kBlock;
    const Index at_once =
        std::clamp<Index>(dense::fitting(machine_, block * static_cast<Index>(sizeof(double)), 1),
                          1, std::max<Index>(units.blocks(), 1));
    Array<double, M> wide(machine_, at_once * block);
    for (Index b = 0; b < units.blocks(); b += at_once) {
      const Index count = std::min(at_once, units.blocks() - b);
      for (Index i = 0; i < count; ++i) {
        machine_.copy_in(wide.data() + i * block, units.block(b + i).data(),
                         static_cast<std::size_t>(block) * sizeof(double));
      }
      const Index at = fast::packed_size(b * UnitKeys::kBlock, d);
      dense::launch(machine_,
                    fast::PackChannels{wide.data(), count, UnitKeys::kBlock, d, units_.factor(),
                                       units_.hi() + at, units_.lo() + at});
    }
    std::vector<double> offsets;
    for (Index i = 0; i < units.padded(); ++i) {
      offsets.push_back(units.is_zero(i) ? 0.0 : 0.5);
    }
    offsets_.put(offsets);
  }

  void gather(std::span<const Index> candidates) {
    candidates_.put(candidates);
    dense::launch(
        machine_,
        fast::GatherSplit{ground_, candidates_.data(), static_cast<Index>(candidates.size()),
                          candidate_units_.hi(), candidate_units_.lo(), candidate_offsets_.data()});
  }

  M& machine_;
  Index n_;
  fast::Packed<M> units_;
  Array<double, M> offsets_;
  Array<std::int32_t, M> best_;
  Array<std::int64_t, M> sums_;  // what a kernel returns
  Array<Index, M> candidates_;
  fast::Packed<M> candidate_units_;
  Array<double, M> candidate_offsets_;
  fast::SplitGround ground_{};
};

}  // namespace kvbench
