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
    case H5T_STRING: e.kind = Element::Kind::text; return e;
    case H5T_COMPOUND: e.kind = Element::Kind::compound; return e;
    case H5T_ENUM: e.kind = Element::Kind::enumeration; return e;
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
  if (is_virtual || H5Pget_external_count(plist) != 0) {
    at.where.refuse("has {} storage in other files, expected its values in this one",
                    is_virtual ? "virtual" : "external");
  }
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
    case Element::Kind::text: return "string";
    case Element::Kind::compound: return "compound";
    case Element::Kind::enumeration: return "enumeration";
    case Element::Kind::other: break;
  }
  return "another type";
}

void check_filters(const Dataset& d, const Place& where) {
  for (auto f = d.filters.begin(); f != d.filters.end(); ++f) {
    if (!can_undo(*f)) {
      where.refuse("filter {} ({}) is not available, expected none, shuffle, gzip or fletcher32",
                   f->id, f->label.empty() ? "unnamed" : f->label);
    }
    if (std::ranges::count(d.filters.begin(), f, f->id, &Filter::id) > 0) {
      where.refuse("filter {} ({}) is there twice, expected each once", f->id, f->label);
    }
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
  if (found != written) {
    at.where.refuse(
        "cannot be read (its table counts {} chunks and holds {}), expected a complete dataset",
        written, found);
  }
}

// HDF5 gives the fill value for a missing chunk. Damage looks the same as a writer's omission, so
// both are rejected.
void check_chunks(const Hdf5Object& at, Dataset& d, std::uint64_t bytes) {
  const Place& where = at.where;
  std::uint64_t chunk_bytes = d.element.bytes;
  for (const std::uint64_t size : d.chunk) {
    if (size == 0 || __builtin_mul_overflow(chunk_bytes, size, &chunk_bytes) ||
        chunk_bytes > kMaxBytes) {
      where.refuse("chunks are [{}], expected sizes of at least 1 that fit memory",
                   fmt::join(d.chunk, ", "));
    }
  }
  if (chunk_bytes > std::max(bytes, kFreeBytes)) {
    where.refuse("chunks have {} bytes, expected at most the {} of the dataset", chunk_bytes,
                 bytes);
  }
  const std::uint64_t grid = grid_size(d);
  if (grid <= kMaxChunks) {
    list_chunks(at, d, grid);
  }
  const std::uint64_t file_bytes = at.file->bytes();
  std::uint64_t stored = 0;  // at most a million times 32 bits
  for (const Chunk& c : d.chunks) {
    stored += c.bytes;
    if (c.bytes > file_bytes || c.address > file_bytes - c.bytes || stored > file_bytes) {
      where.refuse("has a chunk of {} bytes at {}, expected all within the file's {} bytes",
                   c.bytes, c.address, file_bytes);
    }
  }
  if (bytes > kFreeBytes && bytes / kMaxRatio > stored) {
    where.refuse("needs {} bytes, expected at most {} times the {} that are stored", bytes,
                 kMaxRatio, stored);
  }
  if (grid > kMaxChunks) {
    where.refuse("has more than {} chunks, expected fewer and larger ones", kMaxChunks);
  }
  const auto missing = std::ranges::find(d.chunks, 0U, &Chunk::bytes);
  if (missing != d.chunks.end()) {
    where.refuse("chunk at [{}] is missing ({} of {} are), expected all chunks in the file",
                 fmt::join(corner(d, missing - d.chunks.begin()), ", "),
                 std::ranges::count(d.chunks, 0U, &Chunk::bytes), grid);
  }
}

// Bytes of all elements.
std::uint64_t checked_bytes(const Dataset& d, const Place& where) {
  std::uint64_t bytes = d.element.bytes;
  for (const std::uint64_t size : d.sizes) {
    if (__builtin_mul_overflow(bytes, size, &bytes) || bytes > kMaxBytes) {
      where.refuse("shape is [{}], expected a product that fits memory", fmt::join(d.sizes, ", "));
    }
  }
  return bytes;
}

std::vector<Index> checked_sizes(const Dataset& d, const Place& where, const Spec& spec) {
  if (d.sizes.size() != spec.rank) {
    where.refuse("rank is {}, expected {}: [{}]", d.sizes.size(), spec.rank, spec.axes);
  }
  if (std::ranges::count(d.sizes, 0U) > 0) {
    where.refuse("shape is [{}], expected sizes of at least 1", fmt::join(d.sizes, ", "));
  }
  checked_bytes(d, where);
  return {d.sizes.begin(), d.sizes.end()};
}

bool is_digest(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// The texts of a dataset's attribute `sha256`, one for each of `parts` (heads, or 1 for the whole
// dataset), or none.
std::vector<std::string> digests_of(const Hdf5Object& dataset, std::size_t parts) {
  std::vector<std::string> texts = optional_strings(dataset, schema::kDigest);
  if (!texts.empty() && texts.size() != parts) {
    dataset.where.refuse("attribute {} has {} texts, expected {}", schema::kDigest, texts.size(),
                         parts);
  }
  const auto bad = std::ranges::find_if_not(texts, is_digest);
  if (bad != texts.end()) {
    dataset.where.refuse("attribute {} is \"{}\", expected 64 lower-case hexadecimal digits",
                         schema::kDigest, *bad);
  }
  return texts;
}

void read_compact(const Hdf5Object& at, Dataset& d, std::uint64_t bytes) {
  if (bytes > kMaxCompact) {
    at.where.refuse("holds 0 bytes, expected {} for its shape", bytes);
  }
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
  const std::uint64_t bytes = checked_bytes(d, at.where);
  const std::uint64_t file_bytes = at.file->bytes();
  switch (d.layout) {
    case Dataset::Layout::compact: read_compact(at, d, bytes); break;
    case Dataset::Layout::contiguous:
      if (d.bytes < bytes) {
        at.where.refuse("holds {} bytes, expected {} for its shape", d.bytes, bytes);
      }
      if (bytes > file_bytes || d.address > file_bytes - bytes) {
        at.where.refuse("needs {} bytes at {}, expected to lie within the file's {} bytes", bytes,
                        d.address, file_bytes);
      }
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

Tensor open_integers(const Hdf5Object& group, std::string_view name, Index count, const char* noun,
                     const char* size) {
  const Hdf5Object at = open_dataset(group, name);
  const auto data = dataset_of(at);
  const Dataset& d = *data;
  if (!d.element.standard || d.element.kind == Element::Kind::real) {
    at.where.refuse("elements are no integers, expected int32");
  }
  if (d.sizes.size() != 1) {
    at.where.refuse("rank is {}, expected 1: [{}]", d.sizes.size(), size);
  }
  if (std::cmp_not_equal(d.sizes[0], count)) {
    at.where.refuse("holds {} {}, expected {} = {}", d.sizes[0], noun, size, count);
  }
  check_storage(at, *data);
  return {data, at.where, {count}, DType::float32, digests_of(at, 1)};
}

Tensor open_tensor(const Hdf5Object& group, const Spec& spec, DType dtype) {
  const Hdf5Object at = open_dataset(group, spec.name);
  const auto data = dataset_of(at);
  const Dataset& d = *data;
  const DType expected = spec.type == Spec::always_float32 ? DType::float32 : dtype;
  const bool or_float32 = spec.type == Spec::as_trace_or_float32;
  const auto found = stored_dtype(d.element);
  if (!found || !(*found == expected || (or_float32 && *found == DType::float32))) {
    at.where.refuse("elements are {}, expected {} for dtype {}{}", describe_type(d.element),
                    stored_as(expected), name(expected),
                    or_float32 && expected != DType::float32
                        ? fmt::format(", or {}", stored_as(DType::float32))
                        : "");
  }
  std::vector<Index> sizes = checked_sizes(d, at.where, spec);
  check_storage(at, *data);
  return {data, at.where, std::move(sizes), *found,
          digests_of(at, spec.rank == 3 ? d.sizes.front() : 1)};
}

Tensor open_array(const Hdf5Object& group, std::string_view name, bool reals) {
  const Hdf5Object at = open_dataset(group, name);
  const auto data = dataset_of(at);
  const Dataset& d = *data;
  if (!d.element.standard || (d.element.kind == Element::Kind::real) != reals) {
    at.where.refuse("elements are of another type, expected {}",
                    reals ? "16-, 32- or 64-bit floats" : "integers");
  }
  if (std::ranges::count(d.sizes, 0U) == 0) {
    check_storage(at, *data);
  }
  return {data, at.where, {d.sizes.begin(), d.sizes.end()}, DType::float32, {}};
}

}  // namespace kvbench::h5
