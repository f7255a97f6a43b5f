#include "replay/repeat.hpp"

#include <vector>

#include "metrics/error.hpp"
#include "report/table_spec.hpp"

namespace kvbench {
namespace {

struct Times {
  std::vector<double> compress_ms;
  std::vector<double> attend_us;
};

double range_of(const std::vector<double>& x) {
  return percentile(x, 0.75) - percentile(x, 0.25);
}

}  // namespace

JobResult repeat_job(Index times, const std::function<JobResult()>& job) {
  JobResult out = job();
  if (times <= 1 || !has_lines(out.rows.front().status)) {
    return out;
  }
  std::vector<Times> by_row(out.rows.size());
  for (Index i = 0; i < times; ++i) {
    out = {};
    out = job();
    for (std::size_t r = 0; r < out.rows.size(); ++r) {
      by_row[r].compress_ms.push_back(out.rows[r].compress_ms);
      by_row[r].attend_us.push_back(out.rows[r].attend_us_per_query);
    }
  }
  for (std::size_t r = 0; r < out.rows.size(); ++r) {
    Row& row = out.rows[r];
    row.compress_ms = percentile(by_row[r].compress_ms, 0.5);
    row.compress_ms_iqr = range_of(by_row[r].compress_ms);
    row.attend_us_per_query = percentile(by_row[r].attend_us, 0.5);
    row.attend_us_per_query_iqr = range_of(by_row[r].attend_us);
  }
  if (out.cache) {
    out.cache->compress_ms = out.rows.front().compress_ms;
  }
  return out;
}

}  // namespace kvbench
