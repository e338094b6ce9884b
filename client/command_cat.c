/*
 * command_cat.c - cat: what is in a file of tensors.
 */
#include "tensor_file.h"

#include <stdlib.h>

int command_cat(const struct ropectl *ctl, int argc, char **argv)
{
    struct tensor_file file;
    if (argc != 2 || (argv[1][0] == '-' && argv[1][1]))
        return usage("cat", "%d arguments, expected one file", argc - 1);
    int code = tensor_file_get(ctl, &file, argv[1]);
    cJSON *document = cJSON_CreateObject();
    cJSON *tensors = cJSON_AddArrayToObject(document, "tensors");
    for (int i = 0; i < file.n_tensors && !code; i++)
        add_tensor(tensors, &file.tensors[i]);
    tensor_file_close(&file);
    if (!code)
        return print_document(ctl, document);
    cJSON_Delete(document);
    return code;
}
