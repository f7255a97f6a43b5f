#include "trace/points_file.hpp"

#include <cstdint>

#include "trace/output_file.hpp"

namespace kvbench {

using h5::Handle;

struct PointsFile::Impl {
  h5::OutputFile out;
};

PointsFile::PointsFile(const std::string& path) {
  const h5::Session session;
  impl_.reset(new Impl{h5::OutputFile(path)});
  const h5::OutputFile& out = impl_->out;
  out.attribute(out.file(), "format", kPointsFormat);
  out.attribute(out.file(), "version", std::int64_t{1});
}

PointsFile::~PointsFile() = default;

void PointsFile::add(const std::string& group, std::span<const Index> tokens,
                     const std::vector<bool>& is_center, std::span<const std::string> kept_by,
                     MatrixView x) {
  const h5::Session session;
  const h5::OutputFile& out = impl_->out;
  const Handle place = out.group(out.file(), group);
  const std::vector<std::uint8_t> flags(is_center.begin(), is_center.end());
  std::vector<const char*> labels;
  for (const std::string& text : kept_by) {
    labels.push_back(text.c_str());
  }
  const Index rows = std::ssize(tokens);
  out.dataset(place, "token", H5T_STD_I64LE, {rows}, tokens.data());
  out.dataset(place, "is_center", H5T_STD_U8LE, {rows}, flags.data());
  out.dataset(place, "kept_by", h5::text_type(), {rows}, labels.data());
  out.dataset(place, "x", H5T_IEEE_F32LE, {rows, x.cols}, x.data);
  // So that a full disk is reported for this head, not for a later one.
  if (H5Fflush(out.file(), H5F_SCOPE_LOCAL) < 0) {
    out.fail(fmt::format("group {}", group));
  }
}

void PointsFile::close() {
  const h5::Session session;
  impl_->out.finish();
}

}  // namespace kvbench
