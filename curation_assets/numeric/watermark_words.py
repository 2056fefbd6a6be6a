"""Words of watermarks, in small letters: names of picture agencies, and what is stamped on previews."""

#: Picture agencies and stock libraries. Looked for anywhere in a text box, with and without their blanks.
AGENCIES: tuple[str, ...] = (
    "123rf",
    "adobe stock",
    "age fotostock",
    "alamy",
    "bigstock",
    "can stock photo",
    "colourbox",
    "crestock",
    "depositphotos",
    "dreamstime",
    "eyeem",
    "fotolia",
    "fotosearch",
    "freepik",
    "getty images",
    "gograph",
    "imago images",
    "istock",
    "masterfile",
    "mostphotos",
    "panthermedia",
    "photocase",
    "picture alliance",
    "pixtastock",
    "pond5",
    "shutterstock",
    "stocksy",
    "storyblocks",
    "superstock",
    "thinkstock",
    "vecteezy",
    "vectorstock",
    "yaymicro",
    "zoonar",
)

#: Stamps on previews. The text of a box must be this and nothing else: on a sign "free sample" is no watermark.
STAMPS: tuple[str, ...] = (
    "draft",
    "for preview only",
    "free trial",
    "preview",
    "preview only",
    "proof",
    "proof only",
    "sample",
    "sample image",
    "specimen",
    "stock photo",
)

#: Whole words that are a watermark wherever they stand.
PHRASES: tuple[str, ...] = (
    "all rights reserved",
    "comp image",
    "do not copy",
    "not for resale",
    "watermark",
    "watermarked",
)
