"""multibit: one nested binary code for image-text search.

    labels ─> relation ─┐
    data ─> features ─> hashing ─> codes ─┬─> search ─> serve
                                          └─> evaluation ─> report, paper

The public names, in the order of the flow:

data        read, read_manifest, label_from_texts, write_dataset, PairedDataset, Split
features    extract_features, load_image_encoder, load_text_encoder, ImageFunction, TextFunction, EncoderRecipe,
            FeatureStore, Pairs, replace_labels
relation    RelationTeacher, allocate_bits
training    train, select, METHODS, Config, HashModel, Run, read_history, open_features
codes       encode, encode_store, CodedItems, Codes, hamming_distances, near_duplicates
search      Index, build_indices, encode_text, encode_image, find_duplicates, open_run, export_run, pull, PortableModel
evaluation  evaluate, evaluate_run, Evaluation, Metric, compare, save_evaluations, load_evaluations,
            mean_average_precision, average_precision, precision_at, precision_recall, mean_of
errors      MultibitError, DataError, ConfigError, FormatError, MismatchError, BusyError, MissingExtraError

Names are loaded on first use, so importing the package imports neither torch nor numba.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
