#include "replay/policy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/sha256.hpp"

namespace kvbench {
namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "kvbench-policy";
constexpr int kVersion = 1;
constexpr double kRounding = 1e-9;  // of a mean of decimal fractions

// Parses parts of one file; errors begin with its path.
class PolicyFile {
 public:
  explicit PolicyFile(const std::string& path) : path_(path) {}

  Policy read() const {
    constexpr std::size_t kMost = std::size_t{1} << 24;
    const std::optional<std::string> found = read_at_most(path_, kMost);
    if (!found) {
      fail("cannot be read");
    }
    const std::string& text = *found;
    if (text.size() > kMost) {
      fail(fmt::format("got more than {} bytes, expected a policy", kMost));
    }
    const json file = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!file.is_object() || file.value("format", json()) != kFormat ||
        file.value("version", json()) != kVersion) {
      fail(fmt::format("expected a JSON object with \"format\": \"{}\", \"version\": {}", kFormat,
                       kVersion));
    }
    Policy out;
    out.name = std::filesystem::path(path_).stem().string();
    const auto plain = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '-' || c == '_' || c == '.';
    };
    if (!std::ranges::all_of(out.name, plain)) {
      fail("expected a file name of letters, digits, `-`, `_` and `.`");
    }
    Sha256 hash;
    hash.add(text);
    out.sha256 = hash.text();
    out.budget = fraction(file, "budget", "");
    const json layers = file.value("layers", json());
    if (!layers.is_array() || layers.empty()) {
      fail("layers: expected a list of objects with `layer`, `algorithm` and `budget`");
    }
    for (const json& one : layers) {
      add_layer(one, out);
    }
    double sum = 0.0;
    for (const auto& [number, layer] : out.layers) {
      sum += layer.budget;
    }
    const double mean = sum / static_cast<double>(out.layers.size());
    if (mean > out.budget + kRounding) {
      fail(fmt::format("layers: got a mean budget of {}, expected at most `budget`, {}", mean,
                       out.budget));
    }
    return out;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(fmt::format("--policy {}: {}", path_, what));
  }

  double fraction(const json& object, const char* key, const std::string& where) const {
    const json value = object.value(key, json());
    const double out = value.is_number() ? value.get<double>() : -1.0;
    if (!(out >= 0.0 && out <= 1.0)) {
      fail(fmt::format("{}{}: got {}, expected a fraction in [0, 1]", where, key,
                       value.is_null() ? "nothing" : value.dump()));
    }
    return out;
  }

  void add_layer(const json& object, Policy& out) const {
    constexpr Index kMost = Index{1} << 20;
    const json number = object.is_object() ? object.value("layer", json()) : json();
    if (!number.is_number_unsigned() || number.get<std::uint64_t>() > kMost) {
      fail(fmt::format("layers: got {}, expected an object with `layer`, an integer of at least 0",
                       object.dump()));
    }
    const auto layer = number.get<Index>();
    const std::string where = fmt::format("layer {}: ", layer);
    const json spec = object.value("algorithm", json());
    if (!spec.is_string()) {
      fail(where + "algorithm: expected text as of --algorithm");
    }
    std::vector<Variant> variants;
    try {
      variants = expand_algorithms({spec.get<std::string>()}, Protocol::prefill);
    } catch (const InputError& e) {
      fail(where + e.what());
    }
    if (variants.size() != 1) {
      fail(fmt::format("{}{}: got {} algorithms, expected one", where, spec.get<std::string>(),
                       variants.size()));
    }
    Variant& variant = variants.front();
    if (variant.sized()) {
      fail(fmt::format("{}{}: has a size of its own, expected an algorithm with a budget", where,
                       variant.name()));
    }
    if (variant.scope() == Scope::layers) {
      fail(fmt::format("{}{}: shares its budget over layers, expected one that does not", where,
                       variant.name()));
    }
    variant.by_set.clear();
    const double budget = fraction(object, "budget", where);
    if (!out.layers.emplace(layer, Policy::Layer{std::move(variant), budget}).second) {
      fail(where + "duplicate layer");
    }
  }

  const std::string& path_;
};

}  // namespace

std::string Policy::params() const {
  constexpr std::size_t kDigits = 8;
  return fmt::format("name={};sha256={}", name, sha256.substr(0, kDigits));
}

Policy read_policy(const std::string& path) {
  return PolicyFile(path).read();
}

void add_policies(const std::vector<std::string>& paths, Scores scores,
                  std::vector<Variant>& variants) {
  std::set<std::string> names;
  for (const std::string& path : paths) {
    const auto policy = std::make_shared<const Policy>(read_policy(path));
    if (!names.insert(policy->name).second) {
      throw InputError(fmt::format("--policy {}: duplicate name {}", path, policy->name));
    }
    Variant out = policy->layers.begin()->second.variant;
    out.policy = policy;
    out.policy_params = policy->params();
    out.declared_scores = "none";
    for (const auto& [number, layer] : policy->layers) {
      const std::string text = layer.variant.scores_text(scores);
      if (text != "none" && out.declared_scores != name(Scores::all)) {
        out.declared_scores = text;
      }
    }
    variants.push_back(std::move(out));
  }
}

Variant policy_layer(const Variant& policy, Index layer) {
  const auto at = policy.policy->layers.find(layer);
  if (at == policy.policy->layers.end()) {
    throw InputError(
        fmt::format("policy {}: no layer {}, which the plan replays", policy.policy->name, layer));
  }
  Variant out = at->second.variant;
  out.policy_params = policy.policy_params;
  out.declared_scores = policy.declared_scores;
  out.layer_budget = at->second.budget;
  return out;
}

}  // namespace kvbench
