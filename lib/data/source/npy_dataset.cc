#include "lib/data/source/npy_dataset.h"

#include <cstring>
#include <string>
#include <utility>

#include "lib/data/format/npy.h"
#include "lib/data/source/array_dataset.h"
#include "lib/status/status.h"

namespace muster {
namespace {

class MappedArray : public SampleArray {
 public:
  MappedArray(const std::string& path, NpyFile file)
      : SampleArray(path, file.header()), file_(std::move(file)) {}

  absl::Status Read(int64_t offset, absl::Span<std::byte> to) const override {
    std::memcpy(to.data(), file_.data().data() + offset, to.size());
    return absl::OkStatus();
  }

 private:
  const NpyFile file_;
};

absl::StatusOr<std::unique_ptr<SampleArray>> OpenMappedArray(const std::string& path,
                                                             const std::string& field) {
  ASSIGN_OR_RETURN(NpyFile file, NpyFile::Open(path, field));
  return std::make_unique<MappedArray>(path, std::move(file));
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Dataset>> OpenNpyDataset(const v1::DataSpec& spec,
                                                              const v1::Graph& graph,
                                                              int64_t held_bytes_max) {
  return OpenArrayDataset(spec.npy().inputs(), graph,
                          {.field = "data.npy",
                           .thing = "a file",
                           .holdout = spec.npy().holdout(),
                           .held_bytes_max = held_bytes_max,
                           .open = OpenMappedArray});
}

}  // namespace muster
