#include "metrics/amnesia.hpp"

namespace kvbench {

HeldFigures held_figures(const ExactAttention& truth, std::span<const std::uint8_t> held) {
  HeldFigures out;
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (held[i] != 0) {
      out.mass_kept += truth.mass[i];
    } else if (truth.noticed[i] != 0) {
      ++out.amnesia_count;
      out.amnesia_mass += truth.mass[i];
    }
  }
  return out;
}

void HeldOverSteps::add(std::span<const double> p, std::span<const std::uint8_t> held) {
  ++queries_;
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
  out.mass_kept = kept_ / queries;
  for (std::size_t i = 0; i < lost_.size(); ++i) {
    if (noticed_[i] != 0) {
      ++out.amnesia_count;
      out.amnesia_mass += lost_[i] / queries;
    }
  }
  return out;
}

}  // namespace kvbench
