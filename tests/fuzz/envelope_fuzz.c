/* What is told of a message that is not parsed, against what a parser finds in it. */
#include <stdlib.h>

#include "base/json.h"
#include "transport/mux.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok) {
    if (!ok) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {"type", "id"};
    cp_str text = {(const char *)data, size};
    cp_autobuf cp_buf envelope = {0};
    cp_err err = {0};
    mux_envelope(text, &envelope);
    require(envelope.n <= MUX_ENVELOPE_MAX + 2);
    cp_autodoc yyjson_doc *whole = cp_json_parse(text, &err);
    if (!whole || size > MUX_ENVELOPE_MAX) return 0;
    cp_autodoc yyjson_doc *part = cp_json_parse(cp_buf_str(&envelope), &err);
    yyjson_val *root = yyjson_doc_get_root(whole), *told = yyjson_doc_get_root(part);
    require(yyjson_is_obj(told));
    bool plain = !memchr(data, '\\', size); /* a key that is written with escapes is not looked for */
    for (size_t i = 0; i < CP_COUNT(names); i++) {
        yyjson_val *is = yyjson_obj_get(root, names[i]), *said = yyjson_obj_get(told, names[i]);
        require(said ? yyjson_equals(is, said) : !is || !plain);
    }
    return 0;
}
