#include "trace/dataset.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "trace/chunk_codec.hpp"

namespace kvbench::h5 {

namespace {

// Far below what an Index can address, even widened to float32.
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 60;

// Bounds gzip bombs: above kFreeBytes, decoded data may be at most this many times their bytes in
// the file.
constexpr std::uint64_t kFreeBytes = std::uint64_t{16} << 20;
constexpr std::uint64_t kMaxRatio = 100;
// Compact data lie in an object header, which HDF5 bounds by 64 KiB.
constexpr std::uint64_t kMaxCompact = std::uint64_t{1} << 16;
constexpr std::uint64_t kMaxChunks = 1000000;
constexpr std::uint64_t kChunksPerStep = 10000;

void expect(const Hdf5Object& dataset, bool good) {
  if (!good) {
    dataset.where.refuse("cannot be read ({}), expected a complete dataset", last_error());
  }
}

// ------------------------------------------------------------------------------- what HDF5 says

// Whether it is an IEEE float or a plain integer, in either byte order.
bool is_standard(hid_t type) {
  const Handle little(H5Tcopy(type), H5Tclose);
  H5Tset_order(little, H5T_ORDER_LE);
  static const Handle half = file_type(DType::float16);
  return std::ranges::any_of(std::array{hid_t{half}, H5T_IEEE_F32LE, H5T_IEEE_F64LE, H5T_STD_U8LE,
                                        H5T_STD_I8LE, H5T_STD_U16LE, H5T_STD_I16LE, H5T_STD_U32LE,
                                        H5T_STD_I32LE, H5T_STD_U64LE, H5T_STD_I64LE},
                             [&](hid_t standard) { return H5Tequal(little, standard) > 0; });
}

Element element_of(hid_t type) {
  Element e;
  e.bytes = H5Tget_size(type);
  switch (H5Tget_class(type)) {
    case H5T_FLOAT: e.kind = Element::Kind::real; break;
    case H5T_INTEGER:
      e.kind = H5Tget_sign(type) == H5T_SGN_NONE ? Element::Kind::unsigned_integer
                                                 : Element::Kind::integer;
      break;
    default: return e;
  }
  const H5T_order_t order = H5Tget_order(type);
  e.big_endian = order == H5T_ORDER_BE;
  e.standard = (e.big_endian || order == H5T_ORDER_LE) && is_standard(type);
  return e;
}

void read_filters(const Hdf5Object& at, hid_t plist, Dataset& d) {
  const int count = H5Pget_nfilters(plist);
  for (int i = 0; i < count; ++i) {
    unsigned options = 0;
    std::array<unsigned, 1> values{};
    std::size_t n_values = values.size();
    std::array<char, 128> label{};
    unsigned config = 0;
    const H5Z_filter_t id = H5Pget_filter2(plist, static_cast<unsigned>(i), &options, &n_values,
                                           values.data(), label.size() - 1, label.data(), &config);
    expect(at, id >= 0);
    d.filters.push_back(
        {static_cast<std::uint32_t>(id), n_values > 0 ? values[0] : 0, label.data()});
  }
}

void read_sizes(const Hdf5Object& at, Dataset& d) {
  const Handle space(H5Dget_space(at.id), H5Sclose);
  expect(at, static_cast<bool>(space));
  std::vector<hsize_t> sizes(
      static_cast<std::size_t>(std::max(H5Sget_simple_extent_ndims(space), 0)));
  if (!sizes.empty()) {
    H5Sget_simple_extent_dims(space, sizes.data(), nullptr);
  }
  d.sizes.assign(sizes.begin(), sizes.end());
}

void read_chunked(const Hdf5Object& at, hid_t plist, Dataset& d) {
  d.layout = Dataset::Layout::chunked;
  std::vector<hsize_t> chunk(d.sizes.size());
  expect(at, H5Pget_chunk(plist, static_cast<int>(chunk.size()), chunk.data()) ==
                 static_cast<int>(chunk.size()));
  d.chunk.assign(chunk.begin(), chunk.end());
  unsigned options = 0;
  expect(at, H5Pget_chunk_opts(plist, &options) >= 0);
  d.plain_edges = (options & H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS) != 0;
  read_filters(at, plist, d);
}

void read_other_layout(const Hdf5Object& at, Dataset& d) {
  const Handle plist(H5Dget_create_plist(at.id), H5Pclose);
  expect(at, static_cast<bool>(plist));
  const H5D_layout_t layout = H5Pget_layout(plist);
  const bool is_virtual = layout == H5D_VIRTUAL;
  at.where.expect(!is_virtual && H5Pget_external_count(plist) == 0,
                  "has {} storage in other files, expected its values in this one",
                  is_virtual ? "virtual" : "external");
  read_sizes(at, d);
  switch (layout) {
    case H5D_COMPACT: d.layout = Dataset::Layout::compact; break;
    case H5D_CONTIGUOUS: d.layout = Dataset::Layout::contiguous; break;
    case H5D_CHUNKED: read_chunked(at, plist, d); break;
    default: break;
  }
}

std::shared_ptr<Dataset> describe(const Hdf5Object& at) {
  auto d = std::make_shared<Dataset>();
  const Handle type(H5Dget_type(at.id), H5Tclose);
  expect(at, static_cast<bool>(type));
  d->element = element_of(type);
  // Only contiguous values in this file have an offset. All else needs the creation properties,
  // which HDF5 is slow to give; and before sizes, for which it looks for the sources of virtual
  // data.
  const haddr_t address = H5Dget_offset(at.id);
  if (address == HADDR_UNDEF) {
    read_other_layout(at, *d);
    return d;
  }
  d->layout = Dataset::Layout::contiguous;
  d->address = address;
  d->bytes = H5Dget_storage_size(at.id);
  read_sizes(at, *d);
  return d;
}

// The storage of an open dataset.
std::shared_ptr<Dataset> dataset_of(const Hdf5Object& at) {
  auto& known = at.file->datasets;
  const auto found = known.find(at.address);
  return found != known.end() ? found->second
                              : known.emplace(at.address, describe(at)).first->second;
}

// --------------------------------------------------------------------------------------- checks

// The stored type as one of the schema's, in either byte order. uint16 can only mean bfloat16.
std::optional<DType> stored_dtype(const Element& e) {
  const bool is_real = e.kind == Element::Kind::real;
  if (e.standard && is_real && e.bytes <= 4) {
    return e.bytes == 2 ? DType::float16 : DType::float32;
  }
  const bool is_bfloat16 = e.standard && e.kind == Element::Kind::unsigned_integer && e.bytes == 2;
  return is_bfloat16 ? std::optional(DType::bfloat16) : std::nullopt;
}

std::string_view stored_as(DType t) {
  switch (t) {
    case DType::float16: return "16-bit IEEE float";
    case DType::bfloat16: return "uint16";
    case DType::float32: return "32-bit IEEE float";
  }
  return "?";
}

std::string describe_type(const Element& e) {
  if (const auto known = stored_dtype(e)) {
    return std::string(stored_as(*known));
  }
  const std::uint64_t bits = std::uint64_t{8} * e.bytes;
  switch (e.kind) {
    case Element::Kind::real: return fmt::format("another {}-bit float", bits);
    case Element::Kind::unsigned_integer: return fmt::format("uint{}", bits);
    case Element::Kind::integer: return fmt::format("int{}", bits);
    case Element::Kind::other: break;
  }
  return "no numbers";
}

bool is_stored_as(Spec::Type type, DType dtype, const Element& e) {
  const auto found = stored_dtype(e);
  switch (type) {
    case Spec::as_trace: return found == dtype;
    case Spec::as_trace_or_float32: return found == dtype || found == DType::float32;
    case Spec::always_float32: return found == DType::float32;
    case Spec::reals: return e.standard && e.kind == Element::Kind::real;
    case Spec::integers: return e.standard && e.kind != Element::Kind::real;
  }
  return false;
}

std::string expected_type(Spec::Type type, DType dtype) {
  switch (type) {
    case Spec::reals: return "16-, 32- or 64-bit floats";
    case Spec::integers: return "int32 or other integers";
    case Spec::always_float32: return std::string(stored_as(DType::float32));
    case Spec::as_trace:
    case Spec::as_trace_or_float32: break;
  }
  const bool or_float32 = type == Spec::as_trace_or_float32 && dtype != DType::float32;
  return fmt::format("{} for dtype {}{}", stored_as(dtype), name(dtype),
                     or_float32 ? ", or 32-bit IEEE float" : "");
}

void check_filters(const Dataset& d, const Place& where) {
  for (auto f = d.filters.begin(); f != d.filters.end(); ++f) {
    where.expect(can_undo(*f),
                 "filter {} ({}) is not available, expected none, shuffle, gzip or fletcher32",
                 f->id, f->label.empty() ? "unnamed" : f->label);
    where.expect(std::ranges::count(d.filters.begin(), f, f->id, &Filter::id) == 0,
                 "filter {} ({}) is there twice, expected each once", f->id, f->label);
  }
}

// Chunks of the whole grid, or a number above kMaxChunks if there are more. All sizes at least 1.
std::uint64_t grid_size(const Dataset& d) {
  std::uint64_t grid = 1;
  for (std::size_t i = 0; i < d.sizes.size(); ++i) {
    const std::uint64_t steps = (d.sizes[i] - 1) / d.chunk[i] + 1;
    if (steps > kMaxChunks / grid) {
      return kMaxChunks + 1;
    }
    grid *= steps;
  }
  return grid;
}

// Where a chunk begins, from its number in the grid.
std::vector<hsize_t> corner(const Dataset& d, std::uint64_t number) {
  std::vector<hsize_t> out(d.sizes.size());
  for (std::size_t i = d.sizes.size(); i-- > 0;) {
    const std::uint64_t steps = (d.sizes[i] - 1) / d.chunk[i] + 1;
    out[i] = number % steps * d.chunk[i];
    number /= steps;
  }
  return out;
}

void list_chunks(const Hdf5Object& at, Dataset& d, std::uint64_t grid) {
  const Handle space(H5Dget_space(at.id), H5Sclose);
  hsize_t written = 0;
  expect(at, H5Dget_num_chunks(at.id, space, &written) >= 0);
  d.chunks.assign(grid, {});
  hsize_t found = 0;
  // Chunks after the last one that is written have no storage.
  for (std::uint64_t i = 0; i < grid && found < written; ++i) {
    if (i % kChunksPerStep == 0) {
      begin_step();
    }
    if (const auto chunk = find_chunk(at.id, corner(d, i))) {
      d.chunks[i] = *chunk;
      ++found;
    }
  }
  at.where.expect(
      found == written,
      "cannot be read (its table counts {} chunks and holds {}), expected a complete dataset",
      written, found);
}

// HDF5 gives the fill value for a missing chunk. Damage looks the same as a writer's omission, so
// both are rejected.
void check_chunks(const Hdf5Object& at, Dataset& d, std::uint64_t bytes) {
  const Place& where = at.where;
  std::uint64_t chunk_bytes = d.element.bytes;
  for (const std::uint64_t size : d.chunk) {
    where.expect(size > 0 && !__builtin_mul_overflow(chunk_bytes, size, &chunk_bytes) &&
                     chunk_bytes <= kMaxBytes,
                 "chunks are [{}], expected sizes of at least 1 that fit memory",
                 fmt::join(d.chunk, ", "));
  }
  where.expect(chunk_bytes <= std::max(bytes, kFreeBytes),
               "chunks have {} bytes, expected at most the {} of the dataset", chunk_bytes, bytes);
  const std::uint64_t grid = grid_size(d);
  if (grid <= kMaxChunks) {
    list_chunks(at, d, grid);
  }
  const std::uint64_t file_bytes = at.file->bytes();
  std::uint64_t stored = 0;  // at most a million times 32 bits
  for (const Chunk& c : d.chunks) {
    stored += c.bytes;
    where.expect(c.bytes <= file_bytes && c.address <= file_bytes - c.bytes && stored <= file_bytes,
                 "has a chunk of {} bytes at {}, expected all within the file's {} bytes", c.bytes,
                 c.address, file_bytes);
  }
  where.expect(bytes <= kFreeBytes || bytes / kMaxRatio <= stored,
               "needs {} bytes, expected at most {} times the {} that are stored", bytes, kMaxRatio,
               stored);
  where.expect(grid <= kMaxChunks, "has more than {} chunks, expected fewer and larger ones",
               kMaxChunks);
  const auto missing = std::ranges::find(d.chunks, 0U, &Chunk::bytes);
  if (missing != d.chunks.end()) {
    where.refuse("chunk at [{}] is missing ({} of {} are), expected all chunks in the file",
                 fmt::join(corner(d, missing - d.chunks.begin()), ", "),
                 std::ranges::count(d.chunks, 0U, &Chunk::bytes), grid);
  }
}

// The texts of a dataset's attribute `sha256`, one for each of `parts` (heads, or 1 for the whole
// dataset), or none.
std::vector<std::string> digests_of(const Hdf5Object& dataset, std::size_t parts) {
  std::vector<std::string> texts = optional_strings(dataset, schema::kDigest);
  dataset.where.expect(texts.empty() || texts.size() == parts,
                       "attribute {} has {} texts, expected {}", schema::kDigest, texts.size(),
                       parts);
  for (const std::string& text : texts) {
    dataset.where.expect(
        text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos,
        "attribute {} is \"{}\", expected 64 lower-case hexadecimal digits", schema::kDigest, text);
  }
  return texts;
}

void read_compact(const Hdf5Object& at, Dataset& d, std::uint64_t bytes) {
  at.where.expect(bytes <= kMaxCompact, "holds 0 bytes, expected {} for its shape", bytes);
  const Handle type(H5Dget_type(at.id), H5Tclose);
  d.compact.resize(bytes);
  expect(at, H5Dread(at.id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, d.compact.data()) >= 0);
}

// Throws InputError on a dataset of standard elements, at least one, whose bytes do not fit memory
// or the file, whose filters are not supported, or that lacks a chunk. Afterwards slab_read.hpp
// reads it without checking it again.
void check_storage(const Hdf5Object& at, Dataset& d) {
  if (d.checked) {
    return;
  }
  std::uint64_t bytes = d.element.bytes;
  for (const std::uint64_t size : d.sizes) {
    at.where.expect(!__builtin_mul_overflow(bytes, size, &bytes) && bytes <= kMaxBytes,
                    "shape is [{}], expected a product that fits memory", fmt::join(d.sizes, ", "));
  }
  const std::uint64_t file_bytes = at.file->bytes();
  switch (d.layout) {
    case Dataset::Layout::compact: read_compact(at, d, bytes); break;
    case Dataset::Layout::contiguous:
      at.where.expect(d.bytes >= bytes, "holds {} bytes, expected {} for its shape", d.bytes,
                      bytes);
      at.where.expect(bytes <= file_bytes && d.address <= file_bytes - bytes,
                      "needs {} bytes at {}, expected to lie within the file's {} bytes", bytes,
                      d.address, file_bytes);
      break;
    case Dataset::Layout::chunked:
      check_filters(d, at.where);
      check_chunks(at, d, bytes);
      break;
    default:
      at.where.refuse("has a storage layout that is not read, expected contiguous or chunked");
  }
  d.checked = true;
}

}  // namespace

void check_disjoint(const Hdf5Object& root) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> extents;  // begin and end, in the file
  const auto add = [&](std::uint64_t address, std::uint64_t bytes) {
    if (address + bytes > address) {
      extents.emplace_back(address, address + bytes);
    }
  };
  for (const auto& [header, d] : root.file->datasets) {
    if (d->layout == Dataset::Layout::contiguous) {
      add(d->address, d->bytes);
    }
    for (const Chunk& c : d->chunks) {
      add(c.address, c.bytes);
    }
  }
  std::ranges::sort(extents);
  const auto shared = std::ranges::adjacent_find(
      extents, [](const auto& a, const auto& b) { return b.first < a.second; });
  if (shared != extents.end()) {
    root.where.refuse("byte {} belongs to the values of two datasets or chunks, expected of one",
                      (shared + 1)->first);
  }
}

Tensor open_tensor(const Hdf5Object& group, const Spec& spec, DType dtype) {
  const Hdf5Object at = open_dataset(group, spec.name);
  const auto data = dataset_of(at);
  const Dataset& d = *data;
  at.where.expect(is_stored_as(spec.type, dtype, d.element), "elements are {}, expected {}",
                  describe_type(d.element), expected_type(spec.type, dtype));
  const bool any_shape = spec.rank == 0;
  at.where.expect(any_shape || d.sizes.size() == spec.rank, "rank is {}, expected {}: [{}]",
                  d.sizes.size(), spec.rank, spec.axes);
  const bool empty = std::ranges::count(d.sizes, 0U) > 0;
  at.where.expect(any_shape || !empty, "shape is [{}], expected sizes of at least 1",
                  fmt::join(d.sizes, ", "));
  if (!empty) {
    check_storage(at, *data);
  }
  Tensor out{data, at.where, {d.sizes.begin(), d.sizes.end()}, DType::float32, {}};
  if (spec.type < Spec::reals) {
    out.dtype = *stored_dtype(d.element);
  }
  if (!any_shape) {
    out.digests = digests_of(at, spec.rank == 3 ? d.sizes.front() : 1);
  }
  return out;
}

}  // namespace kvbench::h5
