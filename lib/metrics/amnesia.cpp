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

}  // namespace kvbench
