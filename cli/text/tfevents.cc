#include "cli/text/tfevents.h"

#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/transport/core/crc32c.h"

namespace muster::cli {
namespace {

// Fields of tensorflow.Event, Summary and Summary.Value with their wire types: the field number
// times eight, plus 0 (varint), 1 (64 bits), 2 (length) or 5 (32 bits).
constexpr char kWallTime = 1 * 8 + 1;
constexpr char kStep = 2 * 8 + 0;
constexpr char kFileVersion = 3 * 8 + 2;
constexpr char kSummary = 5 * 8 + 2;
constexpr char kValue = 1 * 8 + 2;
constexpr char kTag = 1 * 8 + 2;
constexpr char kSimpleValue = 2 * 8 + 5;

template <typename Number>
void AppendLittleEndian(Number number, std::string& bytes) {
  for (size_t i = 0; i < sizeof(Number); ++i) {
    bytes += static_cast<char>(number >> (8 * i) & 0xff);
  }
}

void AppendVarint(uint64_t number, std::string& bytes) {
  for (; number >= 0x80; number >>= 7) bytes += static_cast<char>(0x80 | (number & 0x7f));
  bytes += static_cast<char>(number);
}

void AppendText(char field, absl::string_view text, std::string& bytes) {
  bytes += field;
  AppendVarint(text.size(), bytes);
  bytes.append(text.data(), text.size());
}

// TFRecord rotates the CRC and adds a constant, because the CRC of data that contains CRCs would be
// weak.
uint32_t MaskedCrc(absl::string_view bytes) {
  const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
  const uint32_t crc = Crc32c(absl::MakeConstSpan(data, bytes.size()));
  return std::rotr(crc, 15) + 0xa282ead8U;
}

std::string Event(absl::Time time) {
  std::string event(1, kWallTime);
  AppendLittleEndian(std::bit_cast<uint64_t>(absl::ToDoubleSeconds(time - absl::UnixEpoch())),
                     event);
  return event;
}

}  // namespace

absl::StatusOr<std::unique_ptr<EventFile>> EventFile::Create(const std::string& folder,
                                                             absl::string_view name,
                                                             absl::Time start) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::PermissionDeniedError(
        absl::StrCat(folder, ": cannot make the folder: ", error.message()));
  }
  std::string path =
      absl::StrCat(folder, "/events.out.tfevents.", absl::ToUnixSeconds(start), ".", name);
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return absl::ErrnoToStatus(errno, path);
  std::unique_ptr<EventFile> events(new EventFile(std::move(path), file));
  std::string version = Event(start);
  AppendText(kFileVersion, "brain.Event:2", version);
  events->Write(version);
  return events;
}

EventFile::~EventFile() {
  if (file_ != nullptr) std::fclose(file_);
}

void EventFile::Write(absl::string_view event) {
  std::string head;
  AppendLittleEndian<uint64_t>(event.size(), head);
  AppendLittleEndian(MaskedCrc(head), head);
  std::string tail;
  AppendLittleEndian(MaskedCrc(event), tail);
  for (const absl::string_view part : {absl::string_view(head), event, absl::string_view(tail)}) {
    failed_ |= std::fwrite(part.data(), 1, part.size(), file_) != part.size();
  }
}

void EventFile::AddScalar(absl::string_view tag, int64_t step, double value, absl::Time time) {
  std::string scalar;
  AppendText(kTag, tag, scalar);
  scalar += kSimpleValue;
  AppendLittleEndian(std::bit_cast<uint32_t>(static_cast<float>(value)), scalar);
  std::string summary;
  AppendText(kValue, scalar, summary);
  std::string event = Event(time);
  event += kStep;
  AppendVarint(static_cast<uint64_t>(step), event);
  AppendText(kSummary, summary, event);
  Write(event);
}

absl::Status EventFile::Close() {
  failed_ |= std::fclose(file_) != 0;
  file_ = nullptr;
  if (!failed_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(path_, ": cannot write; check that the disk is not full"));
}

}  // namespace muster::cli
