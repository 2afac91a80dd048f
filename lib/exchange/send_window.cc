#include "lib/exchange/send_window.h"

#include "glog/logging.h"

namespace muster {

int64_t SendWindow::Begin(int64_t bytes) {
  CHECK_LT(next_ - oldest_, static_cast<int64_t>(sends_.size()));
  begun_bytes_ += bytes;
  At(next_) = {.end = begun_bytes_};
  return next_++;
}

void SendWindow::End(int64_t ticket) {
  CHECK(ticket >= oldest_ && ticket < next_ && !At(ticket).done);
  At(ticket).done = true;
  for (; oldest_ < next_ && At(oldest_).done; ++oldest_) first_byte_ = At(oldest_).end;
}

}  // namespace muster
