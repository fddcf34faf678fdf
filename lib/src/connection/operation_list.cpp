#include "connection/operation_list.hpp"

namespace rcverbs::detail {

bool operation_list::remove(operation& op) noexcept {
    operation* before = nullptr;
    operation* at = first_;
    while (at != nullptr && at != &op) {
        before = at;
        at = at->next;
    }
    if (at == nullptr) return false;
    (before != nullptr ? before->next : first_) = op.next;
    if (last_ == &op) last_ = before;
    op.next = nullptr;
    return true;
}

operation_list operation_list::split_from(operation& op) noexcept {
    operation_list before;
    while (first_ != &op) before.push_back(*pop_front());
    return std::exchange(*this, before);
}

}  // namespace rcverbs::detail
