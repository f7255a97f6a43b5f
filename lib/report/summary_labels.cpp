// Names of methods: the algorithm and what tells its variants apart.
#include <fmt/format.h>

#include <map>
#include <set>

#include "report/schema.hpp"
#include "report/summary_table.hpp"

namespace kvbench {

std::vector<std::string> short_labels(std::span<const std::string> algorithms,
                                      std::span<const std::string> params) {
  // Per algorithm and parameter: the values seen, and by how many groups.
  struct Seen {
    std::set<std::string> values;
    std::size_t groups = 0;
  };
  std::map<std::string_view, std::map<std::string, Seen>> seen;
  std::map<std::string_view, std::size_t> groups;
  for (std::size_t i = 0; i < algorithms.size(); ++i) {
    ++groups[algorithms[i]];
    for (auto& [key, value] : split_params(params[i])) {
      Seen& s = seen[algorithms[i]][key];
      s.values.insert(value);
      ++s.groups;
    }
  }
  std::vector<std::string> labels;
  for (std::size_t i = 0; i < algorithms.size(); ++i) {
    std::string label = algorithms[i];
    for (const auto& [key, value] : split_params(params[i])) {
      const Seen& s = seen[algorithms[i]][key];
      // Absent from some groups: named, but for what another parameter's value brings with it
      // (attention-matching's keys=h2o brings h2o.heavy_ratio).
      const bool brought = key.find('.') != std::string::npos;
      if (s.values.size() > 1 || (s.groups < groups[algorithms[i]] && !brought)) {
        label += fmt::format(" {}={}", key, value);
      }
    }
    labels.push_back(std::move(label));
  }
  return labels;
}

}  // namespace kvbench
