#include "lib/transport/tcp/tls_stream.h"

#include <glog/logging.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/string_view.h"
#include "lib/transport/tcp/gcm_provider.h"

namespace muster {
namespace {

constexpr unsigned char kIdentity[] = "muster";
constexpr size_t kIdentityBytes = sizeof(kIdentity) - 1;
constexpr unsigned char kCipher[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256
constexpr int64_t kAesGcmRecordsMax = 23'726'566;  // 2^24.5: RFC 8446, 5.5
static_assert(TlsStream::kRecordsPerKey <= kAesGcmRecordsMax / 2);

TlsStream* StreamOf(SSL* ssl) { return static_cast<TlsStream*>(SSL_get_app_data(ssl)); }

// Removes OpenSSL's errors of this thread and returns the first.
std::string TakeErrors() {
  std::string text;
  while (const unsigned long error = ERR_get_error()) {
    std::array<char, 256> line;
    ERR_error_string_n(error, line.data(), line.size());
    if (text.empty()) text = line.data();
  }
  return text.empty() ? "the connection was closed" : text;
}

// Whether OpenSSL could not read the incoming bytes. An alert is different: the other end sends it
// if it could not read.
bool IsDamage(unsigned long error) {
  const bool alert =
      ERR_GET_LIB(error) == ERR_LIB_SSL && ERR_GET_REASON(error) >= SSL_AD_REASON_OFFSET;
  return error != 0 && !alert;
}

}  // namespace

struct TlsStream::Callbacks {
  static int ReadSocket(BIO* bio, char* bytes, size_t size, size_t* read) {
    auto* stream = static_cast<TlsStream*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    *read = 0;
    if (stream->arrived_begin_ == stream->arrived_end_) {
      const ssize_t result = recv(stream->socket_, stream->arrived_.get(), kArrivedBytes, 0);
      if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        BIO_set_retry_read(bio);
      }
      if (result == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
      if (result <= 0) return static_cast<int>(result);
      stream->arrived_begin_ = 0;
      stream->arrived_end_ = static_cast<size_t>(result);
    }
    *read = std::min(size, stream->arrived_end_ - stream->arrived_begin_);
    std::memcpy(bytes, stream->arrived_.get() + stream->arrived_begin_, *read);
    stream->arrived_begin_ += *read;
    return 1;
  }

  static int WriteSocket(BIO* bio, const char* bytes, size_t size, size_t* written) {
    auto* stream = static_cast<TlsStream*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    if (stream->gathering_) {
      CHECK_LE(size, kSealedBytes - stream->sealed_end_);
      std::memcpy(stream->sealed_.get() + stream->sealed_end_, bytes, size);
      stream->sealed_end_ += size;
      *written = size;
      return 1;
    }
    // A write caused by reading, for example an alert, comes behind the waiting records.
    *written = 0;
    if (!stream->Flush()) {
      BIO_set_retry_write(bio);
      return -1;
    }
    const ssize_t result = send(stream->socket_, bytes, size, MSG_NOSIGNAL);
    *written = static_cast<size_t>(std::max<ssize_t>(result, 0));
    if (result > 0) return 1;
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) stream->write_error_ = errno;
    BIO_set_retry_write(bio);
    return -1;
  }

  static long Control(BIO* bio, int command, long, void*) {
    switch (command) {
      case BIO_CTRL_FLUSH:
        return 1;
      case BIO_CTRL_EOF:
        return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0;
      default:
        return 0;
    }
  }

  static BIO_METHOD* Method() {
    static BIO_METHOD* const method = [] {
      BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "muster socket");
      CHECK(made != nullptr);
      BIO_meth_set_read_ex(made, ReadSocket);
      BIO_meth_set_write_ex(made, WriteSocket);
      BIO_meth_set_ctrl(made, Control);
      return made;
    }();
    return method;
  }

  static SSL_SESSION* MakeSession(SSL* ssl) {
    const auto& key = StreamOf(ssl)->key_;
    SSL_SESSION* session = SSL_SESSION_new();
    CHECK(session != nullptr);
    const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kCipher);
    CHECK(cipher != nullptr);
    CHECK(SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(key.data()),
                                      key.size()) == 1 &&
          SSL_SESSION_set_cipher(session, cipher) == 1 &&
          SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1);
    return session;
  }

  static int UsePsk(SSL* ssl, const EVP_MD*, const unsigned char** identity, size_t* size,
                    SSL_SESSION** session) {
    *identity = kIdentity;
    *size = kIdentityBytes;
    *session = MakeSession(ssl);
    return 1;
  }

  static int FindPsk(SSL* ssl, const unsigned char* identity, size_t size, SSL_SESSION** session) {
    *session = size == kIdentityBytes && std::memcmp(identity, kIdentity, size) == 0
                   ? MakeSession(ssl)
                   : nullptr;
    return 1;
  }

  // One context for each side, which lives as long as the process.
  static SSL_CTX* Context(Side side) {
    static SSL_CTX* const contexts[] = {MakeContext(Side::kConnector),
                                        MakeContext(Side::kAcceptor)};
    return contexts[side == Side::kAcceptor];
  }

  static SSL_CTX* MakeContext(Side side) {
    SSL_CTX* context =
        SSL_CTX_new_ex(FastGcmContext(), kFastGcmProperties,
                       side == Side::kConnector ? TLS_client_method() : TLS_server_method());
    CHECK(context != nullptr) << TakeErrors();
    CHECK_EQ(SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION), 1);
    CHECK_EQ(SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256"), 1) << TakeErrors();
    SSL_CTX_set_num_tickets(context, 0);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    // A stream may end without a TLS goodbye: a message cut short by that is detected by its
    // length.
    SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    if (side == Side::kConnector) {
      SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);  // no certificate is accepted
      SSL_CTX_set_psk_use_session_callback(context, UsePsk);
    } else {
      SSL_CTX_set_psk_find_session_callback(context, FindPsk);
    }
    return context;
  }
};

void TlsStream::Deleter::operator()(ssl_st* ssl) const { SSL_free(ssl); }

TlsStream::TlsStream(Side side, const SessionToken::Proof& key, int socket, int64_t records_per_key)
    : key_(key),
      socket_(socket),
      records_per_key_(records_per_key),
      ssl_(SSL_new(Callbacks::Context(side))),
      arrived_(std::make_unique_for_overwrite<std::byte[]>(kArrivedBytes)) {
  CHECK(ssl_ != nullptr) << TakeErrors();
  SSL_set_app_data(ssl_.get(), this);
  BIO* bio = BIO_new(Callbacks::Method());
  CHECK(bio != nullptr);
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);
  if (side == Side::kConnector) {
    SSL_set_connect_state(ssl_.get());
  } else {
    SSL_set_accept_state(ssl_.get());
  }
}

TlsStream::~TlsStream() = default;

TlsStream::Progress TlsStream::Handshake() {
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  if (result == 1) {
    if (SSL_session_reused(ssl_.get()) == 1) return Progress::kDone;  // the shared key was used
    fault_ = "TLS: the other end does not use the session's key";
    return Progress::kFailed;
  }
  const int error = SSL_get_error(ssl_.get(), result);
  if (write_error_ == 0 && error == SSL_ERROR_WANT_READ) return Progress::kWantsRead;
  if (write_error_ == 0 && error == SSL_ERROR_WANT_WRITE) return Progress::kWantsWrite;
  fault_ = "TLS: " + (write_error_ != 0 ? std::string(std::strerror(write_error_)) : TakeErrors());
  return Progress::kFailed;
}

ssize_t TlsStream::Explain(int result) {
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      errno = EAGAIN;
      return -1;
    case SSL_ERROR_ZERO_RETURN:
      return 0;
    case SSL_ERROR_SYSCALL:
      // A failure without a usable errno is reported as a reset.
      if (errno == 0 || errno == EAGAIN) errno = ECONNRESET;
      return -1;
    default:
      LOG(WARNING) << "an encrypted link fails: " << TakeErrors();
      errno = EBADMSG;
      return -1;
  }
}

ssize_t TlsStream::Read(absl::Span<const iovec> room) {
  if (end_) {
    errno = *end_;
    return errno == 0 ? 0 : -1;
  }
  size_t total = 0;
  for (const iovec& piece : room) {
    auto* bytes = static_cast<std::byte*>(piece.iov_base);
    for (size_t at = 0; at < piece.iov_len;) {
      size_t size = 0;
      ERR_clear_error();
      errno = 0;
      const int result = SSL_read_ex(ssl_.get(), bytes + at, piece.iov_len - at, &size);
      if (result != 1) {
        // Explain() removes the errors from OpenSSL's queue, so the check comes first.
        const bool damage = IsDamage(ERR_peek_error());
        const ssize_t why = Explain(result);
        if (why == 0) {
          end_ = 0;
        } else if (errno != EAGAIN) {
          end_ = errno;
          damaged_ = damage && errno == EBADMSG;
        }
        // Bytes that were read before an error are delivered first. `end_` makes the next call
        // return the error.
        return total > 0 ? static_cast<ssize_t>(total) : why;
      }
      at += size;
      total += size;
      bytes_read_ += static_cast<int64_t>(size);
    }
  }
  return static_cast<ssize_t>(total);
}

std::optional<int64_t> TlsStream::UnfinishedRecord() const {
  // "RB" is OpenSSL's state after a record's header: it reads the body.
  if (absl::string_view(SSL_rstate_string(ssl_.get())) != "RB") return std::nullopt;
  return bytes_read_;
}

bool TlsStream::Flush() {
  while (sealed_begin_ < sealed_end_) {
    const ssize_t size =
        send(socket_, sealed_.get() + sealed_begin_, sealed_end_ - sealed_begin_, MSG_NOSIGNAL);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) {
      if (errno != EAGAIN && errno != EWOULDBLOCK) write_error_ = errno;
      return false;
    }
    sealed_begin_ += size;
  }
  sealed_begin_ = sealed_end_ = 0;
  return true;
}

size_t TlsStream::Seal(absl::Span<const iovec> pieces, size_t skip, int& result) {
  size_t first = 0;
  while (first < pieces.size() && skip >= pieces[first].iov_len) skip -= pieces[first++].iov_len;
  const std::byte* bytes = static_cast<const std::byte*>(pieces[first].iov_base) + skip;
  size_t size = std::min(pieces[first].iov_len - skip, kRecordBytes);
  // Small pieces share a record.
  if (size < kRecordBytes && first + 1 < pieces.size()) {
    size = 0;
    for (size_t from = first; from < pieces.size() && size < kRecordBytes; ++from, skip = 0) {
      const size_t part = std::min(pieces[from].iov_len - skip, kRecordBytes - size);
      std::memcpy(record_.data() + size, static_cast<std::byte*>(pieces[from].iov_base) + skip,
                  part);
      size += part;
    }
    bytes = record_.data();
  }
  size_t sealed = 0;
  ERR_clear_error();
  errno = 0;
  gathering_ = true;
  result = SSL_write_ex(ssl_.get(), bytes, size, &sealed);
  gathering_ = false;
  if (result != 1) return 0;
  ++records_;
  return sealed;
}

// The key update joins the buffered records at once. Otherwise OpenSSL would send it with the next
// call of any kind, and a reading call may find the socket full.
bool TlsStream::ChangeKey(int& result) {
  ERR_clear_error();
  errno = 0;
  gathering_ = true;
  result = SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED);
  if (result == 1) result = SSL_do_handshake(ssl_.get());
  gathering_ = false;
  if (result != 1) return false;
  records_ = 0;
  return true;
}

ssize_t TlsStream::Write(absl::Span<const iovec> pieces) {
  size_t offered = 0;
  for (const iovec& piece : pieces) offered += piece.iov_len;
  CHECK_GE(offered, untold_) << "Write() must be offered the untaken bytes again";
  if (sealed_ == nullptr) sealed_ = std::make_unique_for_overwrite<std::byte[]>(kSealedBytes);
  size_t told = 0;
  // The loop encrypts records until the buffer is full, then sends them. Bytes count as written
  // only when the socket has taken all records in the buffer.
  while (told + untold_ < offered || untold_ > 0) {
    while (told + untold_ < offered &&
           kSealedBytes - sealed_end_ >= kKeyUpdateBytes + kSealedRecordMax) {
      int result = 0;
      const bool key_is_good = records_ < records_per_key_ || ChangeKey(result);
      const size_t sealed = key_is_good ? Seal(pieces, told + untold_, result) : 0;
      if (sealed == 0) {
        if (told > 0) return static_cast<ssize_t>(told);
        return Explain(result);
      }
      untold_ += sealed;
    }
    if (!Flush()) break;
    told += untold_;
    untold_ = 0;
  }
  if (told > 0 || offered == 0) return static_cast<ssize_t>(told);
  errno = write_error_ != 0 ? write_error_ : EAGAIN;
  return -1;
}

}  // namespace muster
