#include "metrics/memory.hpp"

namespace kvbench {

MemoryFigures memory_figures(const Compressed& held, const KvHead& head, Index middle,
                             std::optional<Index> seen) {
  const Index all = seen.value_or(head.n());
  const Index uncompressed = all - middle;
  MemoryFigures out;
  out.tokens_kept = uncompressed + static_cast<Index>(held.held.tokens.size()) + held.quantized;
  out.middle_bytes = payload_bytes(held, head) + held.aux_bytes;
  out.bytes = uncompressed * head.pair_bytes() + out.middle_bytes;
  out.full_bytes = all * head.pair_bytes();
  out.ratio = static_cast<double>(out.bytes) / static_cast<double>(out.full_bytes);
  const Index middle_full = middle * head.pair_bytes();
  out.middle_ratio =
      middle > 0 ? static_cast<double>(out.middle_bytes) / static_cast<double>(middle_full) : 1.0;
  out.aux_bytes = held.aux_bytes;
  out.transient_bytes = held.transient_bytes;
  return out;
}

HeldFigures held_figures(const ExactAttention& truth, std::span<const std::uint8_t> held,
                         double sink_mass) {
  HeldFigures out;
  out.mass_kept = sink_mass;
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (held[i] != 0) {
      out.mass_kept += truth.mass[i];
    } else if (truth.noticed[i] != 0) {
      ++out.amnesia_count;
      out.amnesia_mass += truth.mass[i];
    }
  }
  out.mass_kept = share_of_mass(out.mass_kept);
  out.amnesia_mass = share_of_mass(out.amnesia_mass);
  return out;
}

double sink_mass(const KvHead& head, Index g, const ExactAttention& truth) {
  double sum = 0.0;
  for (const double log_z : truth.log_z) {
    sum += sink_share(head, g, log_z);
  }
  return sum / static_cast<double>(truth.log_z.size());
}

void HeldOverSteps::add(std::span<const double> p, std::span<const std::uint8_t> held,
                        double sink) {
  ++queries_;
  kept_ += sink;
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (held[i] != 0) {
      kept_ += p[i];
    } else {
      lost_[i] += p[i];
      noticed_[i] = static_cast<std::uint8_t>(noticed_[i] | (p[i] > kAmnesiaThreshold ? 1 : 0));
    }
  }
}

HeldFigures HeldOverSteps::figures() const {
  HeldFigures out;
  const auto queries = static_cast<double>(queries_);
  out.mass_kept = share_of_mass(kept_ / queries);
  for (std::size_t i = 0; i < lost_.size(); ++i) {
    if (noticed_[i] != 0) {
      ++out.amnesia_count;
      out.amnesia_mass += lost_[i] / queries;
    }
  }
  out.amnesia_mass = share_of_mass(out.amnesia_mass);
  return out;
}

}  // namespace kvbench
