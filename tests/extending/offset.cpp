#include "cluster/offset.hpp"

#include <cmath>

namespace kvbench {

CommonOffset common_offset(const RowSet& rows) {
  double squared = 0.0;
  for (const double x : rows.moments().mean) {
    squared += x * x;
  }
  double mean_squared_norm = 0.0;
  for (const double norm : rows.norms()) {
    mean_squared_norm += norm * norm / static_cast<double>(rows.count());
  }
  return {std::sqrt(squared), mean_squared_norm > 0.0 ? squared / mean_squared_norm : 0.0};
}

}  // namespace kvbench
