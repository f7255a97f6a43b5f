#include "trace/dataset.hpp"

#include <algorithm>
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

// The stored type as one of the schema's, in either byte order. uint16 can only mean bfloat16.
std::optional<DType> stored_dtype(const Element& e) {
  const bool is_real = e.kind == Element::Kind::real;
  if (e.standard && is_real && e.bytes <= 4) {
    return e.bytes == 2 ? DType::float16 : DType::float32;
  }
  const bool is_bfloat16 = e.standard && e.kind == Element::Kind::natural && e.bytes == 2;
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
    case Element::Kind::natural: return fmt::format("uint{}", bits);
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

// Where a chunk begins, from its number in the grid.
std::vector<std::uint64_t> corner(const Dataset& d, std::uint64_t number) {
  std::vector<std::uint64_t> out(d.sizes.size());
  for (std::size_t i = d.sizes.size(); i-- > 0;) {
    const std::uint64_t steps = (d.sizes[i] - 1) / d.chunk[i] + 1;
    out[i] = number % steps * d.chunk[i];
    number /= steps;
  }
  return out;
}

// HDF5 gives the fill value for a missing chunk. Damage looks the same as a writer's omission, so
// both are rejected.
void check_chunks(const Dataset& d, const Place& where, std::uint64_t bytes,
                  std::uint64_t file_bytes) {
  if (d.chunk.size() != d.sizes.size()) {
    where.refuse("chunks have rank {}, expected {}", d.chunk.size(), d.sizes.size());
  }
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
  const std::uint64_t grid = grid_size(d);
  if (grid > kMaxChunks) {
    where.refuse("has more than {} chunks, expected fewer and larger ones", kMaxChunks);
  }
  if (d.chunks.size() != grid) {
    where.refuse("has a table of {} chunks, expected {}", d.chunks.size(), grid);
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
std::vector<std::string> digests_of(const Object& dataset, std::size_t parts) {
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

}  // namespace

std::shared_ptr<const Dataset> readable(const Object& dataset) {
  auto d = dataset.file->dataset(dataset.way.back(), dataset.id);
  if (d->layout == Dataset::Layout::external || d->layout == Dataset::Layout::virtual_storage) {
    dataset.where.refuse("has {} storage in other files, expected its values in this one",
                         d->layout == Dataset::Layout::external ? "external" : "virtual");
  }
  if (!d->fault.empty()) {
    dataset.where.refuse("cannot be read ({}), expected a complete dataset", d->fault);
  }
  return d;
}

void check_storage(const Dataset& d, const Place& where, std::uint64_t file_bytes) {
  const std::uint64_t bytes = checked_bytes(d, where);
  switch (d.layout) {
    case Dataset::Layout::compact:
      if (d.compact.size() != bytes) {
        where.refuse("holds {} bytes, expected {} for its shape", d.compact.size(), bytes);
      }
      break;
    case Dataset::Layout::contiguous:
      if (d.bytes < bytes || d.address == kNowhere) {
        where.refuse("holds {} bytes, expected {} for its shape", d.bytes, bytes);
      }
      if (bytes > file_bytes || d.address > file_bytes - bytes) {
        where.refuse("needs {} bytes at {}, expected to lie within the file's {} bytes", bytes,
                     d.address, file_bytes);
      }
      break;
    case Dataset::Layout::chunked:
      check_filters(d, where);
      check_chunks(d, where, bytes, file_bytes);
      break;
    default: where.refuse("has a storage layout that is not read, expected contiguous or chunked");
  }
}

void check_disjoint(const Object& root) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> extents;  // begin and end, in the file
  const auto add = [&](std::uint64_t address, std::uint64_t bytes) {
    if (bytes > 0 && address <= kNowhere - bytes) {
      extents.emplace_back(address, address + bytes);
    }
  };
  for (const auto& [header, d] : root.file->datasets()) {
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

Tensor open_integers(const Object& group, std::string_view name, Index count, const char* noun,
                     const char* size) {
  const Object object = open_dataset(group, name);
  Tensor t{readable(object), object.where, {count}, DType::float32, {}};
  const Dataset& d = *t.data;
  if (!d.element.standard || d.element.kind == Element::Kind::real) {
    t.where.refuse("elements are no integers, expected int32");
  }
  if (d.sizes.size() != 1) {
    t.where.refuse("rank is {}, expected 1: [{}]", d.sizes.size(), size);
  }
  if (std::cmp_not_equal(d.sizes[0], count)) {
    t.where.refuse("holds {} {}, expected {} = {}", d.sizes[0], noun, size, count);
  }
  check_storage(d, t.where, group.file->bytes());
  t.digests = digests_of(object, 1);
  return t;
}

Tensor open_tensor(const Object& group, const Spec& spec, DType dtype) {
  const Object object = open_dataset(group, spec.name);
  Tensor t{readable(object), object.where, {}, DType::float32, {}};
  const Dataset& d = *t.data;
  const DType expected = spec.type == Spec::always_float32 ? DType::float32 : dtype;
  const bool or_float32 = spec.type == Spec::as_trace_or_float32;
  const auto found = stored_dtype(d.element);
  if (!found || !(*found == expected || (or_float32 && *found == DType::float32))) {
    t.where.refuse("elements are {}, expected {} for dtype {}{}", describe_type(d.element),
                   stored_as(expected), name(expected),
                   or_float32 && expected != DType::float32
                       ? fmt::format(", or {}", stored_as(DType::float32))
                       : "");
  }
  t.dtype = *found;
  t.sizes = checked_sizes(d, t.where, spec);
  check_storage(d, t.where, group.file->bytes());
  t.digests = digests_of(object, spec.rank == 3 ? d.sizes.front() : 1);
  return t;
}

}  // namespace kvbench::h5
