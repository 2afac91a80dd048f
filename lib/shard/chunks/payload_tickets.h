// Counts the payloads that are being received into a memory or sent from it.
#pragma once

#include <glog/logging.h>

#include <cstdint>
#include <utility>

namespace muster {

// The owner of the memory owns the tickets. Each transfer takes a ticket and keeps it as long as it
// uses the memory: a receive keeps it next to the place of the payload, a send keeps it inside its
// `done`. The memory may be freed when all tickets are back. No ticket may outlive the owner.
//
// A ticket is one word, allocates nothing and leads back to the owner. A `done` that captures a
// ticket and one more word therefore fits into an AnyInvocable without an allocation.
// Thread-compatible.
template <typename Owner>
class PayloadTickets {
 public:
  // A move-only ticket. It is false after GiveBack() and after it was moved from.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept : tickets_(std::exchange(other.tickets_, nullptr)) {}
    Ticket& operator=(Ticket&& other) noexcept {
      Ticket taken(std::move(other));
      std::swap(tickets_, taken.tickets_);
      return *this;
    }
    ~Ticket() { GiveBack(); }

    explicit operator bool() const { return tickets_ != nullptr; }
    // Requires: the ticket is held.
    Owner& owner() const { return *tickets_->owner_; }
    void GiveBack() {
      if (tickets_ != nullptr) --std::exchange(tickets_, nullptr)->out_;
    }

   private:
    friend class PayloadTickets;
    explicit Ticket(PayloadTickets* tickets) : tickets_(tickets) { ++tickets_->out_; }

    PayloadTickets* tickets_ = nullptr;
  };

  explicit PayloadTickets(Owner* owner) : owner_(owner) {}
  PayloadTickets(const PayloadTickets&) = delete;
  PayloadTickets& operator=(const PayloadTickets&) = delete;
  ~PayloadTickets() {
    CHECK_EQ(out_, 0) << "a payload is still under way while its owner is destroyed";
  }

  Ticket Take() { return Ticket(this); }
  bool all_back() const { return out_ == 0; }

 private:
  Owner* const owner_;
  int64_t out_ = 0;
};

}  // namespace muster
