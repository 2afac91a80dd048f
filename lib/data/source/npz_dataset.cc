#include "lib/data/source/npz_dataset.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/data/format/npz.h"
#include "lib/data/source/array_dataset.h"
#include "lib/data/stage_times.h"
#include "lib/status/status.h"

namespace muster {
namespace {

class NpzArray : public SampleArray {
 public:
  NpzArray(std::string place, std::string field, NpzFile::Array array,
           std::shared_ptr<const DataFile> file)
      : SampleArray(std::move(place), array.header),
        field_(std::move(field)),
        array_(std::move(array)),
        file_(std::move(file)) {}

  absl::Status Read(int64_t offset, absl::Span<std::byte> to) const override {
    const int64_t at = header().data_offset + offset;
    if (!held_.empty()) {
      std::memcpy(to.data(), held_.data() + at - array_.offset, to.size());
      return absl::OkStatus();
    }
    const StageScope scope(InputStage::kRead);
    CountReadBytes(to.size());
    return file_->Read(at, to);
  }

  std::string fingerprint() const override {
    return absl::StrCat(absl::Hex(array_.crc, absl::kZeroPad8), absl::Hex(array_.bytes));
  }

  absl::Status Hold() override {
    held_.resize(array_.bytes);
    RETURN_IF_ERROR(file_->Read(array_.offset, absl::MakeSpan(held_)));
    return CheckCrc(array_.crc, held_, place(), array_.offset, field_);
  }

 private:
  const std::string field_;
  const NpzFile::Array array_;
  const std::shared_ptr<const DataFile> file_;
  std::vector<std::byte> held_;  // the .npy file
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Dataset>> OpenNpzDataset(const v1::DataSpec& spec,
                                                              const v1::Graph& graph,
                                                              const DataOptions& options) {
  const v1::NpzData& npz = spec.npz();
  ASSIGN_OR_RETURN(const NpzFile file, NpzFile::Open(npz.path(), "data.npz.path"));
  auto open = [&](const std::string& name,
                  const std::string& field) -> absl::StatusOr<std::unique_ptr<SampleArray>> {
    ASSIGN_OR_RETURN(NpzFile::Array array, file.Find(name, field));
    return std::make_unique<NpzArray>(file.PlaceOf(name), field, std::move(array), file.file());
  };
  return OpenArrayDataset(npz.inputs(), graph,
                          {.field = "data.npz",
                           .thing = "an array",
                           .holdout = npz.holdout(),
                           .held_bytes_max = options.held_bytes_max,
                           .open = open});
}

}  // namespace muster
