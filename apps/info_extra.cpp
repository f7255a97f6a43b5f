#include "info_extra.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace kvbench {
namespace {

using Json = nlohmann::ordered_json;

std::string prefix_text(const std::set<std::optional<Index>>& prefixes) {
  std::vector<std::string> out;
  for (const std::optional<Index>& prefix : prefixes) {
    out.push_back(prefix ? fmt::format("prefix {}", *prefix) : "no prefix");
  }
  return fmt::format("{}", fmt::join(out, " and "));
}

std::string set_text(const ExtraSetInfo& set) {
  std::set<std::optional<Index>> prefixes;
  Index first = 0;
  Index last = 0;
  std::size_t about = 0;
  std::size_t normed = 0;
  for (const ExtraSegmentInfo& s : set.segments) {
    prefixes.insert(s.prefix);
    normed += s.has_residual_norm ? 1 : 0;
    if (s.about) {
      first = about == 0 ? s.about->begin : std::min(first, s.about->begin);
      last = std::max(last, s.about->end);
      ++about;
    }
  }
  const std::size_t count = set.segments.size();
  const auto of_segments = [count](std::size_t with) {
    return with < count ? fmt::format(" ({} of {} segments)", with, count) : std::string();
  };
  std::string text =
      fmt::format("extra {}: {} queries in {} segment{}, {}", set.name, set.queries(), count,
                  count == 1 ? "" : "s", prefix_text(prefixes));
  if (about > 0) {
    text += fmt::format(", about tokens [{}, {}){}", first, last, of_segments(about));
  }
  if (normed > 0) {
    text += ", residual norms" + of_segments(normed);
  }
  return text;
}

}  // namespace

std::string extra_text(const PromptMeta& prompt) {
  std::vector<std::string> texts;                // in the order of the first layer that has them
  std::map<std::string, std::vector<Index>> in;  // layers by text
  const auto add = [&](const std::string& text, Index layer) {
    std::vector<Index>& layers = in[text];
    if (layers.empty()) {
      texts.push_back(text);
    }
    layers.push_back(layer);
  };
  for (const LayerMeta& layer : prompt.layers) {
    for (const ExtraSetInfo& set : layer.extra) {
      add(set_text(set), layer.layer);
    }
    for (const ScoresInfo& scores : layer.scores) {
      add(fmt::format("scores {}: {}", scores.name, prefix_text({scores.prefix})), layer.layer);
    }
  }
  std::string out;
  for (const std::string& text : texts) {
    const std::vector<Index>& layers = in[text];
    fmt::format_to(
        std::back_inserter(out), "    {}{}\n", text,
        layers.size() < prompt.layers.size()
            ? fmt::format(" (layer{} {})", layers.size() == 1 ? "" : "s", fmt::join(layers, ", "))
            : "");
  }
  return out;
}

void add_extra(const LayerMeta& layer, nlohmann::ordered_json& to) {
  to["extra"] = Json::array();
  for (const ExtraSetInfo& set : layer.extra) {
    Json segments = Json::array();
    for (const ExtraSegmentInfo& s : set.segments) {
      segments.push_back(Json{{"queries", s.queries},
                              {"prefix", or_null(s.prefix)},
                              {"first", s.about ? Json(s.about->begin) : Json()},
                              {"last", s.about ? Json(s.about->end) : Json()},
                              {"residual_norm", s.has_residual_norm}});
    }
    to["extra"].push_back(Json{{"name", set.name}, {"segments", std::move(segments)}});
  }
  to["scores"] = Json::array();
  for (const ScoresInfo& scores : layer.scores) {
    to["scores"].push_back(Json{{"name", scores.name}, {"prefix", or_null(scores.prefix)}});
  }
}

}  // namespace kvbench
