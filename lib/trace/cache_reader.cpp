#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "core/error.hpp"
#include "core/float16.hpp"
#include "trace/cache_names.hpp"
#include "trace/caches.hpp"
#include "trace/chunk_write.hpp"
#include "trace/dataset.hpp"

namespace kvbench {

using h5::Handle;
using h5::Place;

namespace {

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '+' || c == '-';
}

void check_algorithm(const std::string& name, const Place& where) {
  if (name.empty() || name.size() > 100 || !std::all_of(name.begin(), name.end(), is_word)) {
    where.refuse(
        fmt::format("algorithm is \"{}\", expected up to 100 letters, digits and . _ + -", name));
  }
}

// key=value;key=value, keys ascending and different.
void check_params(const std::string& params, const Place& where) {
  const auto refuse = [&] {
    where.refuse(
        fmt::format("params is \"{}\", expected key=value;key=value with ascending keys", params));
  };
  std::string_view last;
  for (std::string_view rest = params; !rest.empty();) {
    const auto end = std::min(rest.find(';'), rest.size());
    const std::string_view part = rest.substr(0, end);
    const auto equals = part.find('=');
    const std::string_view key = part.substr(0, std::min(equals, part.size()));
    if (equals == std::string_view::npos || key.empty() || key <= last || end + 1 == rest.size() ||
        !std::all_of(key.begin(), key.end(), is_word) ||
        std::any_of(part.begin(), part.end(), [](char c) { return c < ' '; })) {
      refuse();
    }
    last = key;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

std::string one_of(hid_t object, const char* name, std::string fallback,
                   std::initializer_list<std::string_view> choices, const Place& where) {
  std::string value = h5::optional_string(object, name, where).value_or(std::move(fallback));
  if (std::find(choices.begin(), choices.end(), value) == choices.end()) {
    where.refuse(fmt::format("{} is \"{}\", expected {}", name, value, fmt::join(choices, ", ")));
  }
  return value;
}

Index at_least_0(hid_t object, const char* name, const Place& where) {
  const Index value = h5::required_int(object, name, where);
  if (value < 0) {
    where.refuse(fmt::format("{} is {}, expected at least 0", name, value));
  }
  return value;
}

// Bytes or tokens of one KV head. The bound is far above any, and sums of many stay in 64 bits.
std::optional<Index> optional_count(hid_t object, const char* name, const Place& where) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 40;
  const auto value = h5::optional_unsigned(object, name, where);
  if (value && *value > kMost) {
    where.refuse(fmt::format("{} is {}, expected at most {}", name, *value, kMost));
  }
  return value;
}

std::optional<double> optional_time(hid_t object, const char* name, const Place& where) {
  const auto value = h5::optional_float(object, name, where);
  if (value && !(*value >= 0.0 && *value <= std::numeric_limits<double>::max())) {
    where.refuse(fmt::format("{} is {}, expected a finite number of at least 0", name, *value));
  }
  return value;
}

// Text of a row: one line.
std::string optional_line(hid_t object, const char* name, const Place& where) {
  std::string value = h5::optional_string(object, name, where).value_or("");
  if (std::any_of(value.begin(), value.end(),
                  [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; })) {
    where.refuse(
        fmt::format("{} is \"{}\", expected a line without control characters", name, value));
  }
  return value;
}

// A dataset of floats or integers whose shape has been checked.
struct Values {
  Handle id;
  Handle type;
  Place where;
  Index rows = 0;
};

// [rows, cols] or, with cols 0, [rows]. `rows` as given, or at most -rows of them.
Values open_values(hid_t parent, const char* name, H5T_class_t kind, Index rows, Index cols,
                   const Place& entry) {
  Values out;
  out.where = entry / name;
  out.id = h5::open_dataset(parent, name, out.where);
  out.type = Handle(H5Dget_type(out.id.get()), H5Tclose);
  const std::size_t bytes = out.type ? H5Tget_size(out.type.get()) : 0;
  if (!out.type || H5Tget_class(out.type.get()) != kind || bytes > 8) {
    out.where.refuse(fmt::format("elements are of another type, expected {}",
                                 kind == H5T_FLOAT ? "16-, 32- or 64-bit floats" : "integers"));
  }
  const Handle space(H5Dget_space(out.id.get()), H5Sclose);
  const int rank = space ? H5Sget_simple_extent_ndims(space.get()) : -1;
  std::vector<hsize_t> sizes(static_cast<std::size_t>(std::max(rank, 0)));
  if (rank > 0) {
    H5Sget_simple_extent_dims(space.get(), sizes.data(), nullptr);
  }
  const auto fits = [&] {
    const std::size_t expected = cols == 0 ? 1 : 2;
    if (sizes.size() != expected || sizes[0] > static_cast<hsize_t>(std::abs(rows)) ||
        (rows >= 0 && sizes[0] != static_cast<hsize_t>(rows))) {
      return false;
    }
    return cols == 0 || sizes[1] == static_cast<hsize_t>(cols);
  };
  if (!fits()) {
    out.where.refuse(fmt::format("shape is [{}], expected [{}{}{}]", fmt::join(sizes, ", "),
                                 rows < 0 ? "at most " : "", std::abs(rows),
                                 cols == 0 ? "" : fmt::format(", {}", cols)));
  }
  out.rows = static_cast<Index>(sizes[0]);
  const auto total = static_cast<std::uint64_t>(out.rows * std::max<Index>(cols, 1)) * bytes;
  if (total > 0) {
    h5::check_storage(out.id.get(), total, h5::file_size_of(out.id.get()), out.where);
  }
  return out;
}

void read_all(const Values& from, hid_t memory, void* to) {
  if (from.rows > 0 && H5Dread(from.id.get(), memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, to) < 0) {
    from.where.refuse(fmt::format("cannot be read ({})", h5::last_error()));
  }
}

void read_floats(const Values& from, float* to, Index count) {
  const Handle half = h5::file_type(DType::float16);
  if (H5Tequal(from.type.get(), half.get()) > 0) {  // HDF5's own conversion is slow
    std::vector<std::uint16_t> bits(static_cast<std::size_t>(count));
    read_all(from, half.get(), bits.data());
    half_to_float(bits.data(), to, count);
  } else {
    read_all(from, H5T_NATIVE_FLOAT, to);
  }
}

Matrix read_matrix(hid_t parent, const char* name, Index rows, Index cols, const Place& entry) {
  const Values from = open_values(parent, name, H5T_FLOAT, rows, cols, entry);
  Matrix out(from.rows, cols);
  const Index count = out.rows() * cols;
  read_floats(from, out.data(), count);
  const Index bad = first_non_finite(out.data(), count);
  if (bad != count) {
    from.where.refuse(fmt::format("row {}, channel {} is {}, expected finite values", bad / cols,
                                  bad % cols, out.data()[bad]));
  }
  return out;
}

// Logarithms of weights in [0, largest float].
std::vector<float> read_log_weights(hid_t parent, const char* name, Index rows,
                                    const Place& entry) {
  const Values from = open_values(parent, name, H5T_FLOAT, rows, 0, entry);
  std::vector<float> out(static_cast<std::size_t>(rows));
  read_floats(from, out.data(), rows);
  // The float next to this logarithm may lie above it, where the weight is infinite.
  const double most = std::log(static_cast<double>(std::numeric_limits<float>::max()));
  const auto bad = std::find_if(out.begin(), out.end(), [&](float x) { return !(x <= most); });
  if (bad != out.end()) {
    from.where.refuse(fmt::format("entry {} is {}, expected at most {:.4g} (-inf: weight 0)",
                                  bad - out.begin(), *bad, most));
  }
  return out;
}

std::vector<std::int32_t> read_tokens(hid_t parent, Index rows, const Place& entry) {
  const Values from = open_values(parent, caches::kToken, H5T_INTEGER, rows, 0, entry);
  std::vector<std::int64_t> wide(static_cast<std::size_t>(rows));
  read_all(from, H5T_NATIVE_INT64, wide.data());
  std::vector<std::int32_t> out;
  for (const std::int64_t t : wide) {
    if (t < -1 || t > std::numeric_limits<std::int32_t>::max()) {
      from.where.refuse(
          fmt::format("row {} is {}, expected a position, or -1 where it was made", out.size(), t));
    }
    out.push_back(static_cast<std::int32_t>(t));
  }
  return out;
}

CacheGroup read_group(hid_t root, const std::string& name, const Place& file) {
  const Place where = file / name;
  const Handle group = h5::open_group(root, name, where);
  CacheGroup out;
  out.name = name;
  out.algorithm = h5::required_string(group.get(), caches::kAlgorithm, where);
  check_algorithm(out.algorithm, where);
  out.params = h5::required_string(group.get(), caches::kParams, where);
  check_params(out.params, where);
  out.budget = h5::optional_float(group.get(), caches::kBudget, where);
  if (out.budget && !(*out.budget >= 0.0 && *out.budget <= 1.0)) {
    where.refuse(fmt::format("budget is {}, expected a fraction in [0, 1]", *out.budget));
  }
  out.seed = h5::optional_unsigned(group.get(), caches::kSeed, where).value_or(0);
  out.scores = one_of(group.get(), caches::kScores, out.scores, {"past", "all", "none"}, where);
  out.scope = one_of(group.get(), caches::kScope, out.scope, {"head", "layer", "layers"}, where);
  return out;
}

}  // namespace

struct CacheReader::Impl {
  std::string path;
  Handle file;
  CachesMeta meta;
  std::vector<CacheGroup> groups;

  ~Impl() {
    const std::lock_guard lock(hdf5_mutex());
    file.reset();
  }
  Place place(std::size_t group, const CachePlace& at) const {
    return {path,
            "/" + groups[group].name + "/" + caches::entry_path(at.prompt, at.layer, at.kv_head)};
  }
  // Whether every step of the way is there.
  bool has(std::size_t group, const CachePlace& at) const {
    std::string here = groups[group].name;
    for (const std::string& step : {std::string("prompts"), at.prompt, std::string("layers"),
                                    fmt::format("{}", at.layer), fmt::format("{}", at.kv_head)}) {
      std::string next = fmt::format("{}/{}", here, step);
      const htri_t there = H5Lexists(file.get(), next.c_str(), H5P_DEFAULT);
      if (there < 0) {
        Place{path, "/" + here}.refuse("expected a group, found another kind of object");
      }
      if (there == 0) {
        return false;
      }
      here = std::move(next);
    }
    return true;
  }
};

CacheReader::CacheReader(const std::string& path) : impl_(std::make_unique<Impl>()) {
  const std::lock_guard lock(hdf5_mutex());
  const h5::Silence silence;
  Impl& r = *impl_;
  r.path = path;
  r.file = Handle(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
  if (!r.file) {
    throw InputError(
        h5::one_line(fmt::format("{}: cannot be opened as HDF5 ({})", path, h5::last_error())));
  }
  const Place root{path, "/"};
  const hid_t file = r.file.get();
  const std::string format = h5::required_string(file, caches::kFormatName, root);
  if (format != caches::kFormat) {
    root.refuse(fmt::format("format is \"{}\", expected \"{}\"", format, caches::kFormat));
  }
  const Index version = h5::required_int(file, caches::kVersionName, root);
  if (version != caches::kVersion) {
    root.refuse(fmt::format("version is {}, expected {}", version, caches::kVersion));
  }
  CachesMeta& m = r.meta;
  m.trace_sha256 = h5::required_strings(file, caches::kTraceHash, root);
  m.protocol = one_of(file, caches::kProtocol, "", {"prefill", "stream"}, root);
  m.sink = at_least_0(file, caches::kSink, root);
  m.recent = at_least_0(file, caches::kRecent, root);
  m.queries = at_least_0(file, caches::kQueries, root);
  m.plan = h5::optional_string(file, caches::kPlan, root).value_or("");
  std::map<std::tuple<std::string, std::string, std::optional<double>, std::uint64_t>, std::string>
      seen;
  for (const std::string& name : h5::link_names(file, root)) {
    CacheGroup group = read_group(file, name, root);
    const auto [first, fresh] =
        seen.emplace(std::tuple{group.algorithm, group.params, group.budget, group.seed}, name);
    if (!fresh) {
      (root / name)
          .refuse(fmt::format(
              "has the algorithm, params, budget and seed of {}, expected one group of each",
              first->second));
    }
    r.groups.push_back(std::move(group));
  }
  if (r.groups.empty()) {
    root.refuse("holds no group, expected one per algorithm and setting");
  }
}

CacheReader::~CacheReader() = default;
CacheReader::CacheReader(CacheReader&&) noexcept = default;
CacheReader& CacheReader::operator=(CacheReader&&) noexcept = default;

const std::string& CacheReader::path() const {
  return impl_->path;
}

const CachesMeta& CacheReader::meta() const {
  return impl_->meta;
}

const std::vector<CacheGroup>& CacheReader::groups() const {
  return impl_->groups;
}

bool CacheReader::has(std::size_t group, const CachePlace& place) const {
  const std::lock_guard lock(hdf5_mutex());
  const h5::Silence silence;
  return impl_->has(group, place);
}

std::string CacheReader::where(std::size_t group, const CachePlace& place) const {
  const Place at = impl_->place(group, place);
  return h5::one_line(fmt::format("{}: {}", at.file, at.path));
}

std::optional<HeadCache> CacheReader::read(std::size_t group, const CachePlace& at,
                                           const Shape& shape) const {
  const std::lock_guard lock(hdf5_mutex());
  const h5::Silence silence;
  if (!impl_->has(group, at)) {
    return std::nullopt;
  }
  const Place where = impl_->place(group, at);
  const Handle entry = h5::open_group(impl_->file.get(), where.path, where);
  const hid_t id = entry.get();
  HeadCache out;
  out.infeasible = optional_line(id, caches::kInfeasible, where);
  out.scoring_queries = optional_count(id, caches::kScoringQueries, where);
  if (!out.infeasible.empty()) {
    return out;
  }
  out.k = read_matrix(id, caches::kKeys, -shape.most, shape.d, where);
  const Index rows = out.k.rows();
  out.v = read_matrix(id, caches::kValues, rows, shape.dv, where);
  if (h5::has_link(id, caches::kLogWeight)) {
    out.log_weight = read_log_weights(id, caches::kLogWeight, rows, where);
  }
  if (h5::has_link(id, caches::kToken)) {
    out.token = read_tokens(id, rows, where);
  }
  const bool own_keys = h5::has_link(id, caches::kKeysDen);
  const bool own_weights = h5::has_link(id, caches::kLogWeightDen);
  if (own_keys || own_weights) {
    CacheDenominator& den = out.denominator.emplace();
    if (own_keys) {
      den.k = read_matrix(id, caches::kKeysDen, -shape.most, shape.d, where);
    }
    if (own_weights) {
      den.log_weight =
          read_log_weights(id, caches::kLogWeightDen, own_keys ? den.k->rows() : rows, where);
    }
  }
  out.aux_bytes = optional_count(id, caches::kAuxBytes, where);
  out.payload_bytes = optional_count(id, caches::kPayloadBytes, where);
  out.quantised = optional_count(id, caches::kQuantised, where).value_or(0);
  out.transient_bytes = optional_count(id, caches::kTransientBytes, where).value_or(0);
  out.compress_ms = optional_time(id, caches::kCompressMs, where);
  out.degenerate = optional_line(id, caches::kDegenerate, where);
  out.diag = optional_line(id, caches::kDiag, where);
  return out;
}

}  // namespace kvbench
